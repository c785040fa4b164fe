"""Who a request is from: tokens, their ends, and what is not one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from fastapi import APIRouter
from sqlmodel import Session, select

from govray.platform.service.identity import tokens
from govray.platform.service.identity.access import CallerDep, needs
from govray.platform.store.database import open_store
from govray.platform.store.tables import AuditEntry, Token
from tests.support.people import KINDS, NOW, Service, serve


@pytest.fixture(scope="module", autouse=True)
def _routes(service: Service) -> None:
    router = APIRouter()

    @router.get("/who")
    def who(caller: CallerDep) -> dict[str, str | None]:
        return {"name": caller.name, "role": caller.role, "supplier": caller.supplier}

    @router.get("/staff", dependencies=[needs("audit")])
    def staff() -> str:
        return "staff"

    @router.post("/write", dependencies=[needs("submit")])
    def write() -> str:
        return "written"

    service.app.include_router(router)


def statuses(service: Service, method: str, path: str) -> dict[str, int]:
    return {kind: service.client(kind).request(method, path).status_code for kind in KINDS}


ENDED = {"expired": 401, "revoked": 401, "disabled": 401}


def test_everyone_is_who_they_are_and_ended_tokens_are_nobody(service: Service) -> None:
    assert statuses(service, "GET", "/who") == dict.fromkeys(KINDS, 200) | ENDED
    supplier = service.client("supplier").get("/who").json()
    assert supplier == {"name": "supplier", "role": "supplier", "supplier": "acme"}
    assert service.client("public").get("/who").json()["role"] == "public"


@pytest.mark.parametrize(
    "header",
    [
        "Bearer nonsense",
        "Bearer ",
        "Basic YWRtaW46YWRtaW4=",
        "Bearer govr_000000000000_" + "A" * 43,
        "Bearer " + "x" * 10_000,
    ],
)
def test_what_is_no_token_is_refused_and_does_not_become_public(
    service: Service, header: str
) -> None:
    answer = service.client("public", Authorization=header).get("/who")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_wrong_secret_reads_like_an_unknown_id(service: Service) -> None:
    token = service.tokens["admin"]
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    unknown = "govr_" + "0" * 12 + token[17:]
    answers = [
        service.client("public", Authorization=f"Bearer {each}").get("/who").json()
        for each in (wrong, unknown)
    ]
    assert answers[0] == answers[1]


def test_a_scope_narrows_a_role(service: Service) -> None:
    with Session(service.engine) as session:
        reading = tokens.new(session, "engineer", role=None, scopes=["read"], at=NOW)
        session.commit()
    client = service.client("public", Authorization=f"Bearer {reading}")
    assert client.get("/who").status_code == 200
    assert client.post("/write").status_code == 403
    assert service.client("engineer").post("/write").status_code == 200


def test_an_expiry_takes_effect_at_once(service: Service) -> None:
    with Session(service.engine) as session:
        token = tokens.new(session, "engineer", role=None, at=NOW, days=1)
        session.commit()
    client = service.client("public", Authorization=f"Bearer {token}")
    try:
        service.clock[0] = NOW + timedelta(days=1, seconds=-1)
        assert client.get("/who").status_code == 200
        service.clock[0] = NOW + timedelta(days=1)
        assert client.get("/who").status_code == 401
    finally:
        service.clock[0] = NOW


def test_the_store_has_no_secret(service: Service) -> None:
    with Session(service.engine) as session:
        rows = session.exec(select(Token)).all()
        kept = " ".join(row.model_dump_json() for row in rows)
    assert len(rows) >= len(service.tokens)
    for token in service.tokens.values():
        assert token.split("_", 2)[2] not in kept


def test_refusals_are_in_the_audit_log_without_the_token(service: Service) -> None:
    token = service.tokens["supplier"]
    service.client("supplier").get("/staff", params={"token": token})
    service.client("public", Authorization=f"Bearer {token}x").get(f"/staff?{token}")
    service.client("supplier").get("/staff")
    with Session(service.engine) as session:
        entries = session.exec(select(AuditEntry)).all()
        text = " ".join(each.model_dump_json() for each in entries)
    assert token not in text
    assert token.split("_", 2)[2] not in text
    last = entries[-1]
    assert (last.user, last.action, last.subject) == ("supplier", "GET /staff", "/staff")
    assert (last.outcome, last.detail) == ("refused", {"status": 403})
    assert last.token == token.split("_")[1]


@pytest.fixture
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path_factory.mktemp('open') / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, auth=False, hosts=("localhost", "127.0.0.1", "[::1]")) as running:
        yield running


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:8585"}, 200),
        ({"Host": "[::1]:8585"}, 200),
        ({"Host": "evil.example:8585"}, 421),
        ({"Host": "localhost:8585", "Origin": "http://localhost:8585"}, 200),
        ({"Host": "localhost:8585", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost:8585", "Origin": "null"}, 403),
    ],
)
def test_without_authentication_only_this_machine_asks(
    open_service: Service, headers: dict[str, str], status: int
) -> None:
    answer = open_service.client("public", **headers).get("/metrics")
    assert answer.status_code == status
