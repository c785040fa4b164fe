"""Deliveries: signed, at least once, tried again, given up, and never by two at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select
from standardwebhooks.webhooks import Webhook as Receiving
from standardwebhooks.webhooks import WebhookVerificationError

from govray.governance.formats.document import format_time
from govray.platform.alerts import delivery
from govray.platform.alerts.delivery import MOST_TRIES, Deliverer
from govray.platform.alerts.sending import ReceiverAnswer
from govray.platform.store import webhooks
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.states import DeliveryState
from govray.platform.store.tables import AuditEntry, Delivery, WebhookRow
from govray.platform.store.webhooks import probe
from tests.support.databases import on_both
from tests.support.receiver import Receiver

KEY = bytes(range(32))


class Scene:
    """A store, a time that is set, and deliverers over both."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # The libraries of receivers compare with their own clock.
        self.now = self.began = datetime.now(UTC).replace(microsecond=0)
        self.made: list[Deliverer] = []

    @property
    def by(self) -> ChangedBy:
        return ChangedBy(user="ada", at=format_time(self.now))

    def hook(self, url: str, **more: Any) -> tuple[str, str]:
        with Session(self.engine) as session:
            row, secret = webhooks.add(session, url=url, key=KEY, by=self.by, **more)
            session.commit()
            return row.id, secret

    def event(self, webhook: str, number: str = "1") -> str:
        with Session(self.engine) as session:
            alert = probe(webhook, at=self.by.at, number=number)
            webhooks.send_test(session, webhooks.find(session, webhook), alert, by=self.by)
            session.commit()
            return alert.id

    def deliverer(self, name: str = "one", **more: Any) -> Deliverer:
        settings: dict[str, Any] = {
            "holder": name,
            "source": "https://govray.example",
            "clock": lambda: self.now,
            "allowed": ["localhost"],
            "jitter": lambda: 0.0,
        }
        found = Deliverer(self.engine, KEY, **{**settings, **more})
        self.made.append(found)
        return found

    def row(self, webhook: str, alert: str) -> Delivery:
        with Session(self.engine) as session:
            return session.get_one(Delivery, (webhook, alert))


@pytest.fixture
def scene(store: Engine) -> Iterator[Scene]:
    made = Scene(store)
    yield made
    for each in made.made:
        each.close()


def test_a_delivery_is_a_cloud_event_that_a_kept_library_verifies(
    scene: Scene, receiver: Receiver
) -> None:
    webhook, secret = scene.hook(receiver.url)
    event = scene.event(webhook)
    scene.deliverer().finish()
    [(headers, body)] = receiver.got
    assert headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    said = Receiving(secret).verify(body, headers)
    assert said == json.loads(body)
    assert said == {
        "specversion": "1.0",
        "id": event,
        "source": "https://govray.example",
        "type": "dev.govray.webhook.test",
        "subject": f"webhooks/{webhook}",
        "time": format_time(scene.began),
        "datacontenttype": "application/json",
        "data": {"project": None},
    }
    assert headers["webhook-id"] == event
    row = scene.row(webhook, event)
    assert (row.state, row.tries, row.status) == (DeliveryState.DELIVERED, 1, 204)
    # What another changed, or who has another secret, is refused.
    with pytest.raises(WebhookVerificationError):
        Receiving(secret).verify(body + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Receiving(scene.hook(receiver.url)[1]).verify(body, headers)


def test_the_secret_is_kept_masked_and_is_in_no_log(scene: Scene, receiver: Receiver) -> None:
    import base64

    webhook, text = scene.hook(receiver.url)
    secret = base64.b64decode(text.removeprefix("whsec_"))
    with Session(scene.engine) as session:
        row = session.get_one(WebhookRow, webhook)
        assert len(secret) == 32
        assert row.secret != secret
        assert webhooks.mask(row.secret, webhook, KEY) == secret
        assert webhooks.mask(row.secret, webhook, bytes(32)) != secret
        assert webhooks.mask(row.secret, "w-other", KEY) != secret
        entries = session.exec(select(AuditEntry)).all()
        assert [each.action for each in entries] == ["webhook added"]
        assert text not in str(entries)
        assert "hook?a=1" not in str(entries)  # paths of webhooks are often secret


def test_what_fails_is_tried_again_later_and_given_up_after_a_day(
    scene: Scene, receiver: Receiver
) -> None:
    webhook, _ = scene.hook(receiver.url)
    event = scene.event(webhook)
    receiver.statuses = [500] * MOST_TRIES
    deliverer = scene.deliverer()
    waited = []
    for tries in range(1, MOST_TRIES + 1):
        deliverer.finish()
        row = scene.row(webhook, event)
        assert (row.tries, row.status, len(receiver.got)) == (tries, 500, tries)
        deliverer.finish()
        assert len(receiver.got) == tries  # not before its time
        waited.append(scene.now)
        if row.state is DeliveryState.PENDING:
            scene.now = datetime.fromisoformat(row.due)
    assert row.state is DeliveryState.DEAD
    assert timedelta(hours=18) < waited[-1] - waited[0] < timedelta(hours=26)
    assert {headers["webhook-id"] for headers, _ in receiver.got} == {event}
    assert len({body for _, body in receiver.got}) == 1
    with Session(scene.engine) as session:
        webhooks.resend(session, webhooks.find(session, webhook), event, by=scene.by)
        session.commit()
    deliverer.finish()
    assert scene.row(webhook, event).state is DeliveryState.DELIVERED


@on_both
def test_of_two_processes_one_sends(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook, _ = scene.hook("https://hooks.example/")
    sent: list[str] = []
    go = threading.Event()

    def slow(_url: str, _body: bytes, headers: dict[str, str], **_: object) -> ReceiverAnswer:
        sent.append(headers["webhook-id"])
        go.wait(120)
        return ReceiverAnswer(204)

    first, second = scene.deliverer("one", send=slow), scene.deliverer("two", send=slow)
    event = scene.event(webhook)
    assert (first.start_due(), second.start_due()) == (1, 0)
    go.set()
    first.finish()
    assert sent == [event]
    # Negative control: what nobody holds on to is sent by both.
    monkeypatch.setattr(delivery, "HELD", timedelta(0))
    go.clear()
    scene.event(webhook, "2")
    assert (first.start_due(), second.start_due()) == (1, 1)
    go.set()


def test_what_a_killed_process_held_is_sent_by_another(scene: Scene) -> None:
    webhook, _ = scene.hook("https://hooks.example/")
    event = scene.event(webhook)
    sent: list[str] = []

    def keep(_url: str, _body: bytes, headers: dict[str, str], **_: object) -> ReceiverAnswer:
        sent.append(headers["webhook-id"])
        return ReceiverAnswer(204)

    killed, other = scene.deliverer("one", send=keep), scene.deliverer("two", send=keep)
    assert len(killed._take(webhook, 1)) == 1  # and then it is gone
    other.finish()
    assert sent == []
    scene.now += delivery.HELD
    other.finish()
    assert sent == [event]
