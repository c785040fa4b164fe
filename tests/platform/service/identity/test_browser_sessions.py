"""Sessions of browsers: begun by a token, ended by signing out, by time, or with the token."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient
from sqlmodel import Session, select

from govray.cli import main
from govray.platform.service.identity import browser_sessions, tokens
from govray.platform.service.identity.access import REMEMBERED, CallerDep
from govray.platform.service.identity.browser_sessions import IDLE, LASTS, NOTED
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.session_cookie import COOKIE, SECURE
from govray.platform.service.identity.tokens import AcceptedToken
from govray.platform.store.tables import AuditEntry, BrowserSession, UserRow
from tests.support.people import NOW, OWN_PAGE, Service, sign_in


@pytest.fixture(scope="module", autouse=True)
def _routes(service: Service) -> None:
    router = APIRouter()

    @router.get("/who")
    def who(caller: CallerDep) -> str:
        return caller.name

    @router.post("/who")
    def change(caller: CallerDep) -> str:
        return caller.name

    service.app.include_router(router)


@pytest.fixture(autouse=True)
def _now(service: Service) -> Iterator[None]:
    yield
    service.clock[0] = NOW


def holding(service: Service, cookie: str, **headers: str) -> TestClient:
    client = service.client("public", **headers)
    client.cookies.set(COOKIE, cookie)
    return client


def new_token(service: Service, user: str, **more: Any) -> str:
    with Session(service.engine) as session:
        text = tokens.new(session, user, role=None, scopes=["write"], at=NOW, **more)
        session.commit()
    return text


def rows(service: Service, user: str) -> list[BrowserSession]:
    with Session(service.engine) as session:
        return list(session.exec(select(BrowserSession).where(BrowserSession.user == user)))


def status(client: TestClient) -> int:
    return client.get("/who").status_code


def test_the_cookie_is_a_session_and_not_the_token(service: Service) -> None:
    client = service.client("public")
    text = new_token(service, "engineer")
    cookie = sign_in(client, text)
    assert client.get("/who").json() == "engineer"
    assert text.split("_", 2)[2] not in cookie
    [row] = [each for each in rows(service, "engineer") if each.token == text.split("_")[1]]
    assert cookie.split("_", 2)[2] not in row.model_dump_json()
    assert tokens.digest(cookie.split("_", 2)[2]) == row.secret_sha256


def test_signing_out_ends_every_copy_of_the_cookie(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replayed() -> int:
        client = service.client("public")
        copy = holding(service, sign_in(client, service.tokens["engineer"]))
        assert status(copy) == 200
        answer = client.post("/sign-out", headers=OWN_PAGE, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert COOKIE not in client.cookies
        return status(copy)

    assert replayed() == 401
    # Negative control: forgetting the cookie alone, as it was, leaves the copy good.
    monkeypatch.setattr(browser_sessions, "end", lambda *_: None)
    assert replayed() == 200


def test_a_session_that_was_brought_along_is_not_signed_in_to(service: Service) -> None:
    planted = sign_in(service.client("public"), service.tokens["supplier"])
    client = holding(service, planted)
    cookie = sign_in(client, service.tokens["admin"])
    assert cookie != planted
    assert status(holding(service, planted)) == 401
    assert holding(service, cookie).get("/who").json() == "admin"


@pytest.mark.parametrize("how", ["revoked", "disabled", "expired"])
def test_a_session_ends_with_its_token(service: Service, how: str) -> None:
    text = new_token(service, "auditor", days=1)
    client = service.client("public")
    with Session(service.engine) as session:
        if how == "expired":
            service.clock[0] = NOW + timedelta(days=1, seconds=-60)
            sign_in(client, text)
            assert status(client) == 200
            service.clock[0] = NOW + timedelta(days=1)
        else:
            sign_in(client, text)
            assert status(client) == 200
            if how == "revoked":
                tokens.revoke(session, text, at=NOW)
            else:
                session.get_one(UserRow, "auditor").disabled = True
            session.commit()
            service.clock[0] = NOW + timedelta(seconds=REMEMBERED)
        assert status(client) == 401
        session.get_one(UserRow, "auditor").disabled = False
        session.commit()


def test_a_session_that_its_token_does_not_end_would_go_on(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: nothing but the look at the token ends it."""
    text = new_token(service, "auditor")
    client = service.client("public")
    sign_in(client, text)
    with Session(service.engine) as session:
        tokens.revoke(session, text, at=NOW)
        session.commit()
    service.clock[0] = NOW + timedelta(seconds=REMEMBERED)
    with monkeypatch.context() as patch:
        caller = Caller(name="auditor", account="auditor")
        patch.setattr(
            browser_sessions,
            "standing",
            lambda *_, at: AcceptedToken(caller, at + timedelta(hours=1)),
        )
        assert status(client) == 200
    service.clock[0] += timedelta(seconds=REMEMBERED)
    assert status(client) == 401


def test_a_session_ends_when_it_is_not_used_and_after_hours_when_it_is(service: Service) -> None:
    client = service.client("public")
    sign_in(client, service.tokens["engineer"])
    used = sign_in(service.client("public"), service.tokens["engineer"])
    service.clock[0] = NOW + IDLE - timedelta(seconds=1)
    assert status(holding(service, used)) == 200
    service.clock[0] = NOW + IDLE
    assert status(client) == 401
    assert status(holding(service, used)) == 200
    at = NOW + IDLE
    while at < NOW + LASTS:
        service.clock[0] = at
        assert status(holding(service, used)) == 200, at
        at += IDLE - NOTED
    service.clock[0] = NOW + LASTS
    assert status(holding(service, used)) == 401


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({}, "public"),
        ({"Sec-Fetch-Site": "cross-site"}, "public"),
        ({"Sec-Fetch-Site": "same-site"}, "public"),
        ({"Sec-Fetch-Site": "same-origin"}, "admin"),
        ({"Origin": "http://testserver"}, "admin"),
        ({"Origin": "http://elsewhere.example"}, "public"),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"}, "public"),
    ],
)
def test_a_session_changes_something_from_our_own_pages_only(
    service: Service, headers: dict[str, str], name: str
) -> None:
    cookie = sign_in(service.client("public"), service.tokens["admin"])
    assert holding(service, cookie, **headers).post("/who").json() == name
    assert holding(service, cookie, **headers).get("/who").json() == "admin"


def test_a_session_is_no_token_and_a_token_no_session(service: Service) -> None:
    text = service.tokens["admin"]
    cookie = sign_in(service.client("public"), text)
    assert status(service.client("public", Authorization=f"Bearer {cookie}")) == 401
    assert status(holding(service, text)) == 401


def test_over_https_only_the_cookie_of_this_very_host_counts(service: Service) -> None:
    client = TestClient(service.app, base_url="https://testserver")
    answer = client.post(
        "/sign-in",
        data={"token": service.tokens["engineer"]},
        headers=OWN_PAGE,
        follow_redirects=False,
    )
    [said] = answer.headers.get_list("set-cookie")
    name, value = said.partition(";")[0].split("=")
    assert name == SECURE + COOKIE
    assert {"secure", "httponly", "path=/", "samesite=strict"} <= {
        each.strip().lower() for each in said.split(";")
    }
    assert "domain" not in said.lower()
    assert client.get("/who").json() == "engineer"
    planted = TestClient(service.app, base_url="https://testserver")
    planted.cookies.set(COOKIE, value)  # as a neighbour in the domain could
    assert planted.get("/who").json() == "public"


def test_signing_in_and_out_is_in_the_audit_log_without_the_secret(service: Service) -> None:
    client = service.client("public")
    cookie = sign_in(client, service.tokens["supplier"])
    client.get("/v1/audit", params={"x": cookie})
    client.post("/sign-out", headers=OWN_PAGE)
    with Session(service.engine) as session:
        entries = session.exec(select(AuditEntry).where(AuditEntry.user == "supplier")).all()
        text = " ".join(each.model_dump_json() for each in session.exec(select(AuditEntry)))
    assert [entries[-2].action, entries[-1].action] == ["sign in", "sign out"]
    assert cookie not in text
    assert cookie.split("_", 2)[2] not in text


def test_an_operator_ends_every_session_of_a_user(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    cookies = [sign_in(service.client("public"), service.tokens["auditor"]) for _ in range(2)]
    other = sign_in(service.client("public"), service.tokens["engineer"])
    url = service.app.state.settings.store
    assert main(["token", "sign-out", "auditor", "--store", url]) == 0
    assert "sessions of auditor" in capsys.readouterr().out
    assert [status(holding(service, each)) for each in (*cookies, other)] == [401, 401, 200]
    assert main(["token", "sign-out", "nobody", "--store", url]) == 0
