"""Webhooks by HTTP: a secret that is shown once, and what was sent."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from sqlmodel import Session, select

from govray.platform.service.identity import tokens
from govray.platform.store.states import DeliveryState
from govray.platform.store.tables import AuditEntry, Delivery
from govray.platform.store.webhooks import KINDS
from tests.support.people import NOW, Service

_NUMBERS = count()
URL = "https://hooks.example/govray"


@pytest.fixture
def made(service: Service) -> dict[str, Any]:
    client = service.client("admin", **{"Idempotency-Key": f"made-{next(_NUMBERS)}"})
    answer, again = (client.post("/v1/webhooks", json={"url": URL}) for _ in range(2))
    assert (answer.status_code, again.status_code) == (201, 409)
    assert "its answer was not kept" in again.json()["detail"]
    found: dict[str, Any] = answer.json()
    return found


def test_a_secret_is_shown_once_and_by_nothing_else(service: Service, made: dict[str, Any]) -> None:
    admin, secret = service.client("admin"), made["secret"]
    assert secret.startswith("whsec_")
    assert made["kinds"] == list(KINDS)
    listed = admin.get("/v1/webhooks", params={"limit": 200})
    assert made["id"] in listed.text
    assert "secret" not in listed.text
    with Session(service.engine) as session:
        logged = session.exec(select(AuditEntry).where(AuditEntry.subject == made["id"])).all()
        assert [each.action for each in logged] == ["webhook added"]
        assert secret not in str(logged)
    assert secret not in admin.get("/v1/audit", params={"limit": 200}).text


def test_a_test_is_put_into_line_given_up_and_sent_again(
    service: Service, made: dict[str, Any]
) -> None:
    admin, path = service.client("admin"), f"/v1/webhooks/{made['id']}"
    sent = admin.post(f"{path}:test").json()
    assert (sent["state"], sent["tries"]) == ("PENDING", 0)
    assert admin.get(f"{path}/deliveries", params={"state": "DEAD"}).json()["items"] == []
    with Session(service.engine) as session:
        row = session.get_one(Delivery, (made["id"], sent["alert"]))
        row.state, row.tries, row.status = DeliveryState.DEAD, 8, 500
        session.commit()
    [dead] = admin.get(f"{path}/deliveries", params={"state": "DEAD"}).json()["items"]
    assert (dead["alert"], dead["status"]) == (sent["alert"], 500)
    again = admin.post(f"{path}/deliveries/{sent['alert']}:resend").json()
    assert (again["state"], again["tries"]) == ("PENDING", 0)
    assert admin.post(f"{path}/deliveries/{0:064x}:resend").status_code == 404
    [happened] = admin.get("/v1/alerts").json()["items"]
    assert (happened["kind"], happened["subject"]) == ("webhook.test", made["id"])
    assert admin.delete(path).json() == {"id": made["id"]}
    assert admin.get(f"{path}/deliveries").status_code == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"url": "http://hooks.example/"}, "https only"),
        ({"url": "https://a:b@hooks.example/"}, "no host, or a part"),
        ({"url": URL, "events": ["run.nothing"]}, "events"),
        ({"url": URL, "secret": "mine"}, "secret"),
    ],
)
def test_what_is_no_webhook_is_refused(service: Service, body: dict[str, Any], said: str) -> None:
    answer = service.client("admin").post("/v1/webhooks", json=body)
    assert answer.status_code in (400, 422)
    assert said in answer.text


def test_a_token_without_the_scope_makes_none(service: Service) -> None:
    with Session(service.engine) as session:
        text = tokens.new(
            session, "admin", role="admin", scopes=("write",), at=NOW - timedelta(days=1)
        )
        session.commit()
    client = service.client("public", Authorization=f"Bearer {text}")
    assert client.post("/v1/webhooks", json={"url": URL}).status_code == 403
