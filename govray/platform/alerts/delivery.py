"""Deliveries: what is due is sent, by a few threads, and tried again until it is accepted.

* At least once: whoever sends a delivery holds it for `HELD`. If the process ends meanwhile,
  another sends it again, under the same id. Two processes never hold one at the same time.
* A receiver that fails is tried again after a time that grows sixfold, up to eight hours. Eight
  tries take about a day. After the last the delivery is dead: it is listed, and sent again when
  somebody asks for it.
* One webhook has at most `AT_ONCE` deliveries under way, and all together `THREADS`. So one slow
  receiver does not hold up the others.

No order is promised.
"""

from __future__ import annotations

import base64
import hmac
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine, or_, update
from sqlmodel import Session, col, select

from govray.governance.formats.document import format_time
from govray.platform.alerts.sending import LIMIT_S, ReceiverAnswer, post
from govray.platform.store.states import DeliveryState
from govray.platform.store.tables import Alert, Delivery, WebhookRow
from govray.platform.store.webhooks import mask

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
TYPE_PREFIX = "dev.govray."
"""Before a kind: the reverse of a domain name, as the specification asks for."""

_SUBJECTS = {
    "run": "runs",
    "search": "experiments",
    "experiment": "experiments",
    "task": "tasks",
    "credential": "corpora",
    "model": "attestations",
    "webhook": "webhooks",
}


def event_body(alert: Alert, source: str) -> bytes:
    """The event as JSON, the same bytes at every try. ``source``: a URI reference that names the
    service, from its operator."""
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": alert.id,
        "source": source,
        "type": TYPE_PREFIX + alert.kind,
        "subject": f"{_SUBJECTS[alert.kind.partition('.')[0]]}/{alert.subject}",
        "time": alert.at,
        "datacontenttype": "application/json",
        "data": {**alert.data, "project": alert.project},
    }
    return json.dumps(event, ensure_ascii=False, sort_keys=True, allow_nan=False).encode()


def signature_headers(secret: bytes, event: str, body: bytes, at: int) -> dict[str, str]:
    """The headers that go with ``body``. ``secret``: the webhook's 32 bytes. ``event``: the event's
    id, the same at every try. ``at``: now, in seconds since 1970."""
    signed = b"%s.%d.%s" % (event.encode(), at, body)
    mac = base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()
    return {
        "webhook-id": event,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{mac}",
    }


THREADS = 8
AT_ONCE = 2
HELD = timedelta(seconds=4 * LIMIT_S)
MOST_TRIES = 8
FIRST_DELAY = timedelta(seconds=10)
LONGEST_DELAY = timedelta(hours=8)
GROWTH = 6
JITTER = 0.2
"""A delay is longer or shorter by up to this share, so that receivers are not met by a wave."""


@dataclass(frozen=True)
class _Sending:
    """A delivery that this process sends, and all that this takes."""

    webhook: str
    alert: str
    url: str
    secret: bytes
    body: bytes
    tries: int


def delay(tries: int, jitter: float) -> timedelta:
    """How long after the try of this number the next one comes. ``tries``: how often it was tried,
    1 or more. ``jitter``: in [-1, 1]: where within the jitter it falls."""
    grown: timedelta = min(FIRST_DELAY * GROWTH ** min(tries - 1, MOST_TRIES), LONGEST_DELAY)
    return grown * (1 + JITTER * jitter)


class Deliverer:
    """Sends what is due in one store. ``key``: its secret, which the webhooks' secrets are masked
    with. ``holder``: a name of this process that no other has. ``jitter``: draws from [-1, 1]."""

    def __init__(
        self,
        engine: Engine,
        key: bytes,
        *,
        holder: str,
        source: str,
        clock: Callable[[], datetime],
        allowed: Collection[str] = (),
        send: Callable[..., ReceiverAnswer] = post,
        jitter: Callable[[], float] = lambda: random.uniform(-1, 1),  # noqa: S311 (no secret)
    ) -> None:
        self._engine, self._key, self._holder = engine, key, holder
        self._source, self._clock, self._allowed = source, clock, frozenset(allowed)
        self._send, self._jitter = send, jitter
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="govray-delivery")
        self._under_way: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._futures: set[Future[None]] = set()

    def start_due(self) -> int:
        """Begin to send what is due and has room; how many deliveries that are."""
        with self._lock:
            busy = Counter(self._under_way)
        room = THREADS - busy.total()
        began = 0
        for webhook in self._with_due() if room > 0 else ():
            for held in self._take(webhook, min(AT_ONCE - busy[webhook], room - began)):
                with self._lock:
                    self._under_way[webhook] += 1
                self._futures.add(self._pool.submit(self._deliver, held))
                began += 1
        self._futures = {each for each in self._futures if not each.done()}
        return began

    def finish(self) -> None:
        """Send all that is due now, and wait for it."""
        while True:
            wait(self._futures)
            if not self.start_due():
                return

    def close(self) -> None:
        """Wait for what is under way, and begin nothing more."""
        self._pool.shutdown(wait=True)

    def _with_due(self) -> list[str]:
        """The webhooks for which something is due, in no order: none is always the first."""
        d, now = Delivery, self._now()
        with Session(self._engine) as session:
            due = session.exec(
                select(d.webhook)
                .where(
                    col(d.state) == DeliveryState.PENDING,
                    col(d.due) <= now,
                    or_(col(d.until).is_(None), col(d.until) <= now),
                )
                .distinct()
            ).all()
        found = list(due)
        random.shuffle(found)
        return found

    def _take(self, webhook: str, most: int) -> list[_Sending]:
        """Hold up to ``most`` deliveries of a webhook that nobody holds."""
        if most <= 0:
            return []
        d, at = Delivery, self._clock()
        now = format_time(at)
        found: list[_Sending] = []
        with Session(self._engine) as session:
            rows = session.execute(
                select(d, Alert, WebhookRow)
                .join(Alert, col(Alert.id) == col(d.alert))
                .join(WebhookRow, col(WebhookRow.id) == col(d.webhook))
                .where(
                    col(d.webhook) == webhook,
                    col(d.state) == DeliveryState.PENDING,
                    col(d.due) <= now,
                    or_(col(d.until).is_(None), col(d.until) <= now),
                )
                .order_by(col(d.due), col(d.alert))
                .limit(most)
            ).all()
            for row, alert, of in rows:
                taken = session.connection().execute(
                    update(d)
                    .where(
                        col(d.webhook) == row.webhook,
                        col(d.alert) == row.alert,
                        col(d.state) == DeliveryState.PENDING,
                        col(d.tries) == row.tries,
                        col(d.until).is_(None) if row.until is None else col(d.until) == row.until,
                    )
                    .values(holder=self._holder, until=format_time(at + HELD))
                )
                if taken.rowcount == 1:
                    secret = mask(of.secret, of.id, self._key)
                    body = event_body(alert, self._source)
                    found.append(_Sending(of.id, alert.id, of.url, secret, body, row.tries))
            session.commit()
        return found

    def _deliver(self, held: _Sending) -> None:
        try:
            at = int(self._clock().timestamp())
            headers = {
                "Content-Type": CONTENT_TYPE,
                **signature_headers(held.secret, held.alert, held.body, at),
            }
            answer = self._send(held.url, held.body, headers, allowed=self._allowed)
            self._note(held, answer)
        finally:
            with self._lock:
                self._under_way[held.webhook] -= 1

    def _note(self, held: _Sending, answer: ReceiverAnswer) -> None:
        """Write down what became of a try, unless another holds the delivery by now."""
        d, tries = Delivery, held.tries + 1
        values: dict[str, object] = {
            "tries": tries,
            "status": answer.status,
            "why": answer.why,
            "holder": None,
            "until": None,
        }
        if answer.accepted:
            values |= {"state": DeliveryState.DELIVERED, "delivered": self._now(), "why": None}
        elif tries >= MOST_TRIES or answer.status == 410:  # Gone: it wants no more of this
            values |= {"state": DeliveryState.DEAD}
        else:
            values |= {"due": format_time(self._clock() + delay(tries, self._jitter()))}
        with Session(self._engine) as session:
            session.connection().execute(
                update(d)
                .where(
                    col(d.webhook) == held.webhook,
                    col(d.alert) == held.alert,
                    col(d.holder) == self._holder,
                )
                .values(**values)
            )
            session.commit()

    def _now(self) -> str:
        return format_time(self._clock())
