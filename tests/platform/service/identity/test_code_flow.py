"""Signing in at an identity provider over HTTP, and everybody who answers in its place."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from fastapi.testclient import TestClient
from sqlmodel import Session, select

from govray.platform.service.identity import oidc, sign_in_attempts
from govray.platform.service.identity.access import REMEMBERED
from govray.platform.service.identity.code_flow import CodeFlow
from govray.platform.service.identity.session_cookie import ATTEMPT, COOKIE, SECURE
from govray.platform.service.identity.sign_in_attempts import BrowserSignIn
from govray.platform.store import role_bindings
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from govray.platform.store.role_bindings import Grant
from govray.platform.store.tables import BrowserSession
from tests.support.identity_provider import CLIENT, IdentityProvider, identity_provider
from tests.support.people import NOW, PAGE, Service, serve, sign_in

BACK = "http://localhost:8585/sign-in/callback"


@pytest.fixture(scope="module")
def running() -> Iterator[IdentityProvider]:
    with identity_provider() as made:
        yield made


@pytest.fixture
def provider(running: IdentityProvider) -> Iterator[IdentityProvider]:
    yield running
    running.restore()


@pytest.fixture(scope="module")
def served(
    running: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path_factory.mktemp('code') / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, oidc=running.settings(BACK)) as service:
        yield service


@pytest.fixture(autouse=True)
def _fresh(served: Service) -> Iterator[None]:
    """What a provider says of itself is asked anew, and the time is set back."""
    served.app.state.code_flow._found = None
    yield
    served.clock[0] = NOW


def browser(served: Service) -> TestClient:
    return TestClient(served.app, headers=PAGE, follow_redirects=False)


def begun(client: TestClient, following: str = "/models") -> dict[str, str]:
    """What the provider is asked, by a browser that wants to sign in."""
    answer = client.get("/sign-in/provider", params={"next": following})
    assert answer.status_code == 303, answer.text
    return dict(parse_qsl(urlsplit(answer.headers["location"]).query))


def came_back(client: TestClient, provider: IdentityProvider, asked: dict[str, str]) -> Any:
    """The callback's answer, with what the provider sent back."""
    back = urlsplit(provider.authorize(asked))
    return client.get(f"{back.path}?{back.query}")


def signed_in(served: Service, provider: IdentityProvider) -> tuple[TestClient, Any]:
    client = browser(served)
    return client, came_back(client, provider, begun(client))


def test_whoever_signs_in_there_is_signed_in_here(
    served: Service, provider: IdentityProvider
) -> None:
    client = browser(served)
    asked = begun(client)
    assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
    assert (asked["redirect_uri"], asked["scope"]) == (BACK, "openid")
    assert asked["code_challenge_method"] == "S256"
    secret = client.cookies[ATTEMPT]
    assert secret not in urlencode(asked)
    assert BrowserSignIn(secret).verifier not in urlencode(asked)
    answer = came_back(client, provider, asked)
    assert answer.status_code == 200
    assert 'content="0; url=/models"' in answer.text
    [said] = [each for each in answer.headers.get_list("set-cookie") if COOKIE in each]
    assert "samesite=strict" in said.lower()
    assert "httponly" in said.lower()
    assert ATTEMPT not in client.cookies
    assert "oidc:ada" in client.get("/models").text
    with Session(served.engine) as session:
        row = session.exec(select(BrowserSession).where(BrowserSession.user == "oidc:ada")).one()
    assert (row.role, row.groups, row.token) == ("engineer", ["ml-engineers"], None)
    # The token endpoint was told what the browser never was.
    [(_, form)] = [each for each in provider.asked if each[0] == "/token"]
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == asked["code_challenge"]
    assert "client_secret" not in form


def test_roles_come_from_the_id_token(served: Service, provider: IdentityProvider) -> None:
    provider.who = {"sub": "sue", "groups": ["suppliers"], "supplier": "acme"}
    client, _ = signed_in(served, provider)
    assert client.get("/experiments").status_code == 403
    assert client.get("/corpora").status_code == 200


def test_the_cookies_are_of_this_very_host_where_people_come_over_https(
    provider: IdentityProvider, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    there = "https://govray.example/sign-in/callback"
    with serve(url, oidc=provider.settings(there)) as service:
        client = TestClient(
            service.app, base_url="https://govray.example", headers=PAGE, follow_redirects=False
        )
        answer = client.get("/sign-in/provider")
        [said] = answer.headers.get_list("set-cookie")
        assert said.startswith(f"{SECURE}{ATTEMPT}=")
        assert "samesite=lax" in said.lower()
        assert "secure" in said.lower()
        asked = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
        said = str(came_back(client, provider, asked).headers.get_list("set-cookie"))
        assert f"{SECURE}{COOKIE}=" in said
        assert "oidc:ada" in client.get("/models").text


# Who answers in the provider's place, or with what was made for another.


def test_an_answer_counts_in_the_browser_that_asked(
    served: Service, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is signed in to an account of whoever sent them the link."""
    attacker, victim = browser(served), browser(served)
    theirs = urlsplit(provider.authorize(begun(attacker)))
    begun(victim)

    def sent() -> Any:
        return victim.get(f"{theirs.path}?{theirs.query}")

    answer = sent()
    assert answer.status_code == 400
    assert "not begun in this browser" in answer.text
    assert COOKIE not in victim.cookies
    assert browser(served).get(f"{theirs.path}?{theirs.query}").status_code == 400
    # Negative control: without the comparison the code is exchanged, and nonce and verifier refuse.
    monkeypatch.setattr(sign_in_attempts.hmac, "compare_digest", lambda *_: True)
    assert sent().status_code == 503  # the provider compares the verifier


def test_an_answer_counts_once(served: Service, provider: IdentityProvider) -> None:
    client = browser(served)
    asked = begun(client)
    secret = client.cookies[ATTEMPT]
    assert came_back(client, provider, asked).status_code == 200
    client.cookies.set(ATTEMPT, secret)
    assert came_back(client, provider, asked).status_code == 400


def test_a_stolen_code_is_worth_nothing_without_the_verifier(
    served: Service, provider: IdentityProvider
) -> None:
    """PKCE at work: the code of one sign-in, put into the answer of another."""
    victim, thief = browser(served), browser(served)
    code = dict(parse_qsl(urlsplit(provider.authorize(begun(victim))).query))["code"]
    provider.back = {"code": code}
    assert came_back(thief, provider, begun(thief)).status_code == 503
    # A provider that compares no verifier gives an id token, with the nonce of another sign-in.
    provider.back = {}
    code = dict(parse_qsl(urlsplit(provider.authorize(begun(victim))).query))["code"]
    provider.checks_verifier = False
    provider.back = {"code": code}
    answer = came_back(thief, provider, begun(thief))
    assert (answer.status_code, "another sign-in" in answer.text) == (401, True)


WRONG_CLAIMS: dict[str, dict[str, Any]] = {
    "another nonce": {"nonce": "another"},
    "no nonce": {"nonce": None},
    "a nonce that is no text": {"nonce": 5},
    "another issuer": {"iss": "https://other.example"},
    "another client": {"aud": "billing"},
    "several clients, and not for us": {"aud": [CLIENT, "billing"]},
    "several clients, for another": {"aud": [CLIENT, "billing"], "azp": "billing"},
    "for another client": {"azp": "billing"},
    "another access token": {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"},
    "an at_hash that is no text": {"at_hash": 5},
    "expired": {"exp": 1},
    "no subject": {"sub": None},
    "no role": {"groups": ["others"]},
}


@pytest.mark.parametrize("claims", WRONG_CLAIMS.values(), ids=WRONG_CLAIMS)
def test_an_id_token_with_other_claims_signs_nobody_in(
    served: Service, provider: IdentityProvider, claims: dict[str, Any]
) -> None:
    provider.claims = claims
    client, answer = signed_in(served, provider)
    assert answer.status_code == 401
    assert COOKIE not in client.cookies


def test_without_its_checks_an_id_token_of_another_sign_in_is_taken(
    served: Service, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of nonce and at_hash."""
    provider.claims = {"nonce": "another", "at_hash": "another"}
    monkeypatch.setattr(oidc.hmac, "compare_digest", lambda *_: True)
    monkeypatch.setattr(oidc, "_left_half", lambda *_: "another")
    assert signed_in(served, provider)[1].status_code == 200


def test_an_access_token_is_no_id_token(served: Service, provider: IdentityProvider) -> None:
    provider.header = {"typ": "at+jwt"}
    assert signed_in(served, provider)[1].status_code == 401


@pytest.mark.parametrize("iss", [None, "https://other.example", ""])
def test_an_answer_of_another_provider_is_refused(
    served: Service,
    provider: IdentityProvider,
    monkeypatch: pytest.MonkeyPatch,
    iss: str | None,
) -> None:
    """Mix-up (RFC 9207): our provider always says ``iss``, so an answer without is not from it."""
    provider.back = {"iss": iss}
    _, answer = signed_in(served, provider)
    assert answer.status_code == 401
    assert "identity provider" in answer.text
    assert not any(path == "/token" for path, _ in provider.asked)
    monkeypatch.setattr(CodeFlow, "check_issuer", lambda *_: None)
    assert signed_in(served, provider)[1].status_code == 200


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://other.example"},
        {"authorization_endpoint": "http://id.example/authorize"},
        {"authorization_endpoint": None},
        {"token_endpoint": "ftp://127.0.0.1/token"},
        {"token_endpoint": ["https://id.example"]},
        {"response_types_supported": ["id_token"]},
        {"response_types_supported": "code"},
        {"code_challenge_methods_supported": ["plain"]},
    ],
    ids=str,
)
def test_a_document_that_rules_the_flow_out_sends_nobody_there(
    served: Service, provider: IdentityProvider, document: dict[str, Any]
) -> None:
    provider.document = document
    answer = browser(served).get("/sign-in/provider")
    assert answer.status_code == 503
    assert "could not be asked" in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "token", [{"id_token": None}, {"id_token": 5}, {"id_token": "nonsense"}, {"id_token": ""}]
)
def test_an_answer_without_an_id_token_signs_nobody_in(
    served: Service, provider: IdentityProvider, token: dict[str, Any]
) -> None:
    provider.token = token
    assert signed_in(served, provider)[1].status_code in (401, 503)


def test_the_challenge_is_that_of_the_rfc(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 7636 appendix B."""
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    monkeypatch.setattr(BrowserSignIn, "verifier", verifier)
    assert BrowserSignIn("x").challenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_a_token_of_the_provider_that_is_typed_keeps_no_role_that_is_bound(
    served: Service, provider: IdentityProvider
) -> None:
    """What was bound when somebody signed in is in no session: it may be taken away."""
    by = ChangedBy(user="admin", at="2026-11-21T11:00:00Z")
    grant = Grant(subject_kind="user", subject="oidc:ada", role="admin", scope="organisation")
    client = browser(served)
    asked = begun(client) | {"redirect_uri": "x"}
    code = dict(parse_qsl(urlsplit(provider.authorize(asked)).query))["code"]
    provider.checks_verifier = False
    provider.claims = {"aud": "govray"}
    token = provider.exchange({"code": code, "redirect_uri": "x"}, None)[1]["id_token"]
    with Session(served.engine) as session:
        id_ = role_bindings.bind(session, grant, by=by).id
        session.commit()
    sign_in(client, token)
    assert client.get("/v1/audit").status_code == 200
    with Session(served.engine) as session:
        roles = session.exec(select(BrowserSession.role)).all()
        role_bindings.unbind(session, id_, by=by)
        session.commit()
    assert "admin" not in roles
    served.clock[0] = NOW + timedelta(seconds=REMEMBERED)
    assert client.get("/v1/audit").status_code == 403
