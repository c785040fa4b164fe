"""Webhooks: who is told of which events, and where, and what became of each telling.

A webhook has a secret of 32 bytes, which signs what is sent. It is shown once, when the webhook is
made. The store keeps it masked by its own secret, as `govray.platform.store.store_secret` does with
others.

Functions take a session and never commit. Times are arguments. Source of the secret's form:
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Collection
from typing import Literal, get_args
from urllib.parse import SplitResult, urlsplit

from sqlalchemy import delete, func
from sqlmodel import Session, col, select

from govray.errors import UsageError, suggestion
from govray.governance.formats import canonical_json
from govray.governance.submission.http_exchange import is_loopback
from govray.platform.store.audit_log import ChangedBy, log
from govray.platform.store.states import DeliveryState
from govray.platform.store.store_secret import masked
from govray.platform.store.tables import Alert, Delivery, WebhookRow

Kind = Literal[
    "run.completed",
    "run.error",
    "run.flag",
    "run.gate",
    "run.rollback",
    "run.log",
    "search.completed",
    "experiment.error",
    "experiment.not_attested",
    "task.error",
    "project.budget",
    "credential.expiring",
    "model.unverified",
    "model.verified",
]
"""What can be told. `govray.platform.alerts.noticing` finds each in the index."""
KINDS: tuple[Kind, ...] = get_args(Kind)
TEST = "webhook.test"

MOST_WEBHOOKS = 100
LONGEST_URL = 2048
SECRET_BYTES = 32
PREFIX = "whsec_"


def add(
    session: Session,
    *,
    url: str,
    kinds: Collection[str] = (),
    project: str | None = None,
    key: bytes,
    by: ChangedBy,
) -> tuple[WebhookRow, str]:
    """Make a webhook. It is told of what happens from now on.

    Args:
        kinds: Of `KINDS`; none: all of them.

    Returns:
        The row, and its secret as its receiver takes it: shown once, and never again.
    """
    check_url(url)
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(
                f"{kind[:60]!r} is no kind of event{suggestion(kind, KINDS)}",
                where="events",
                do=f"Give some of {', '.join(KINDS)}",
            )
    held = session.execute(select(func.count()).select_from(WebhookRow)).scalar_one()
    if held >= MOST_WEBHOOKS:
        raise UsageError(f"there are {held} webhooks, which is the most", do="Remove one first")
    secret = secrets.token_bytes(SECRET_BYTES)
    name = f"w-{secrets.token_hex(6)}"
    row = WebhookRow(
        id=name,
        url=url,
        kinds=sorted(set(kinds)) or list(KINDS),
        project=project,
        secret=mask(secret, name, key),
        created=by.at,
        user=by.user,
    )
    session.add(row)
    log(session, by, "webhook added", name, {"host": urlsplit(url).hostname or ""})
    return row, PREFIX + base64.b64encode(secret).decode()


def find(session: Session, name: str) -> WebhookRow:
    row = session.get(WebhookRow, name)
    if row is None:
        raise UsageError("there is no such webhook", where=name[:60], do="See govray webhook ls")
    return row


def remove(session: Session, row: WebhookRow, *, by: ChangedBy) -> None:
    """Remove a webhook, with what was or was to be sent to it."""
    connection = session.connection()
    connection.execute(delete(Delivery).where(col(Delivery.webhook) == row.id))
    log(session, by, "webhook removed", row.id, {"host": urlsplit(row.url).hostname or ""})
    session.delete(row)
    session.flush()


def send_test(session: Session, row: WebhookRow, event: Alert, *, by: ChangedBy) -> Delivery:
    """Let ``event`` of the kind `TEST` be sent to the webhook, whatever it asked for."""
    session.add(event)
    session.flush()
    delivery = Delivery(webhook=row.id, alert=event.id, state=DeliveryState.PENDING, due=by.at)
    session.add(delivery)
    log(session, by, "webhook tested", row.id, {})
    return delivery


def resend(session: Session, row: WebhookRow, alert: str, *, by: ChangedBy) -> Delivery:
    """Let an event be sent again, at once, and as often as a new one. Raises `UsageError`: it was
    never meant for this webhook."""
    found = session.get(Delivery, (row.id, alert))
    if found is None:
        raise UsageError(
            "the webhook has no delivery of this event",
            where=alert[:80],
            do=f"See govray webhook deliveries {row.id}",
        )
    found.state, found.tries, found.due = DeliveryState.PENDING, 0, by.at
    found.holder = found.until = None
    log(session, by, "webhook resent", row.id, {"event": alert})
    return found


def mask(secret: bytes, webhook: str, key: bytes) -> bytes:
    """A webhook's secret as the store keeps it, and back: XOR with a pad that only the key gives.
    The pad is HMAC-SHA256(key, "webhook secret" || id). An id is never used for two secrets."""
    return masked(secret, b"webhook secret" + webhook.encode(), key)


def check_url(url: str) -> SplitResult:
    """``url`` in parts, if something may be sent there: https, or http to this machine itself.

    Which addresses its name has is checked whenever something is sent
    (`govray.platform.alerts.sending`).
    """
    do = "Give https://HOST/PATH, without a user name; keep tokens out of it"
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise UsageError("the URL cannot be read", where="url", do=do) from None
    if len(url) > LONGEST_URL or not url.isascii() or any(not c.isprintable() for c in url):
        raise UsageError("the URL is too long, or not of printable ASCII", where="url", do=do)
    if " " in url or not host or parts.fragment or "@" in parts.netloc or port == 0:
        raise UsageError("the URL has no host, or a part that is not sent", where="url", do=do)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise UsageError("events are sent over https only", where="url", do=do)
    return parts


def event_id(kind: str, subject: str, mark: str) -> str:
    """The id of what these three name: 64 hex digits, the same whoever notices it, and when."""
    return hashlib.sha256(canonical_json.encode([kind, subject, mark])).hexdigest()


def probe(webhook: str, *, at: str, number: str) -> Alert:
    """An event that says only that a webhook works. ``number`` tells one from the next."""
    return Alert(
        id=event_id(TEST, webhook, number),
        kind=TEST,
        subject=webhook,
        mark=number,
        at=at,
        noticed=at,
        data={},
    )
