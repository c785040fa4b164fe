"""Tokens of an identity provider: real keys, served by a JWKS server on this machine."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from govray.errors import UsageError
from govray.platform.service.http.settings import OidcSettings
from govray.platform.service.identity import oidc
from govray.platform.service.identity.oidc import ALGORITHMS, Oidc
from govray.platform.store.database import open_store
from tests.support.people import Service, serve
from tests.support.web_server import Handler, web_server

ISSUER = "https://id.example"
AUDIENCE = "govray"
PRIVATE: dict[str, Any] = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


def jwk(algorithm: str) -> dict[str, Any]:
    classes = {
        "RS256": jwt.algorithms.RSAAlgorithm,
        "ES256": jwt.algorithms.ECAlgorithm,
        "EdDSA": jwt.algorithms.OKPAlgorithm,
    }
    made = json.loads(classes[algorithm].to_jwk(PRIVATE[algorithm].public_key()))
    return {**made, "kid": algorithm, "use": "sig"}


@dataclass
class Provider:
    """A JWKS server."""

    url: str = ""
    answer: bytes | None = None  # in the place of the keys
    keys: list[dict[str, Any]] = field(default_factory=lambda: [jwk(each) for each in ALGORITHMS])

    def token(
        self,
        algorithm: str = "RS256",
        *,
        kid: str | None = None,
        header: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        now = int(time.time())
        whole = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "ada",
            "iat": now,
            "exp": now + 300,
            "groups": ["ml-engineers"],
        } | claims
        return jwt.encode(
            {key: value for key, value in whole.items() if value is not None},
            PRIVATE[algorithm],
            algorithm,
            headers={"kid": kid or algorithm} | (header or {}),
        )


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()

    class Keys(Handler):
        def do_GET(self) -> None:
            keys = json.dumps({"keys": made.keys}).encode()
            self.say(keys if made.answer is None else made.answer)

    with web_server(Keys) as port:
        made.url = f"http://127.0.0.1:{port}/keys"
        yield made


def settings(url: str, **more: Any) -> OidcSettings:
    roles = {"ml-engineers": "engineer", "compliance": "auditor", "suppliers": "supplier"}
    return OidcSettings(
        **({"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": url, "roles": roles} | more)
    )


@pytest.fixture(scope="module")
def served(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("oidc")
    url = f"sqlite:///{folder / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, oidc=settings(provider.url)) as running:
        yield running


def status(served: Service, token: str, path: str = "/v1/runs") -> int:
    return served.client("public", Authorization=f"Bearer {token}").get(path).status_code


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_the_provider_is_accepted(
    served: Service, provider: Provider, algorithm: str
) -> None:
    assert status(served, provider.token(algorithm)) == 200
    # Our own are still.
    assert served.client("auditor").get("/v1/audit").status_code == 200


def test_roles_come_from_the_claim(served: Service, provider: Provider) -> None:
    engineer = provider.token()
    auditor = provider.token(groups="compliance")
    supplier = provider.token(groups=["suppliers"], supplier="acme")
    assert status(served, engineer, "/v1/audit") == 403
    assert status(served, auditor, "/v1/audit") == 200
    assert status(served, supplier, "/v1/runs") == 403
    caller = Oidc(settings(provider.url)).verify(supplier).caller
    assert (caller.name, caller.role, caller.supplier) == ("oidc:ada", "supplier", "acme")


def forged() -> str:
    """HS256 with the provider's public key as the secret: the classic confusion (RFC 8725)."""
    public = PRIVATE["RS256"].public_key()
    secret = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    now = int(time.time())
    claims: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "x"}
    claims |= {"iat": now, "exp": now + 300}
    claims["groups"] = ["ml-engineers"]
    # By hand: PyJWT refuses to make one.
    parts = [{"alg": "HS256", "kid": "RS256", "typ": "JWT"}, claims]
    signed = ".".join(unpadded(json.dumps(each).encode()) for each in parts)
    tag = hmac.new(secret, signed.encode(), "sha256").digest()
    return f"{signed}.{unpadded(tag)}"


def unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def unsigned(token: str) -> str:
    head = unpadded(b'{"alg":"none","kid":"RS256","typ":"JWT"}')
    return f"{head}.{token.split('.')[1]}."


def changed(token: str) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    claims["groups"] = ["compliance"]
    return f"{head}.{unpadded(json.dumps(claims).encode())}.{signature}"


NOT_ACCEPTED = {
    "another issuer": {"iss": "https://other.example"},
    "another audience": {"aud": "billing"},
    "expired": {"exp": 1},
    "not yet": {"nbf": 4_000_000_000},
    "no expiry": {"exp": None},
    "no subject": {"sub": None},
    "no role": {"groups": ["others"]},
    "no claim": {"groups": None},
    "a supplier without a name": {"groups": ["suppliers"]},
}


@pytest.mark.parametrize("claims", NOT_ACCEPTED.values(), ids=NOT_ACCEPTED)
def test_a_token_with_other_claims_is_refused(
    served: Service, provider: Provider, claims: dict[str, Any]
) -> None:
    assert status(served, provider.token(**claims)) == 401


def test_a_token_that_is_not_signed_as_it_has_to_be_is_refused(
    served: Service, provider: Provider
) -> None:
    good = provider.token()
    assert status(served, forged()) == 401
    assert status(served, unsigned(good)) == 401
    assert status(served, changed(good)) == 401
    assert status(served, provider.token("ES256", kid="RS256")) == 401


FOR_ACCESS = ("JWT", "jwt", "at+jwt", "application/at+jwt", "AT+JWT")
FOR_OTHERS = ("logout+jwt", "secevent+jwt", "dpop+jwt", "JOSE", "application/jwt2", "jwt ")


@pytest.mark.parametrize("kind", [*FOR_ACCESS, *FOR_OTHERS])
def test_a_token_says_that_it_is_for_access(served: Service, provider: Provider, kind: str) -> None:
    expected = 200 if kind in FOR_ACCESS else 401
    assert status(served, provider.token(header={"typ": kind})) == expected


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_a_short_rsa_key_signs_nothing(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    published = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(weak.public_key()))
    published |= {"kid": "weak", "use": "sig"}  # by the provider itself
    monkeypatch.setattr(provider, "keys", [*provider.keys, published])
    claims = jwt.decode(provider.token(), options={"verify_signature": False})
    token = jwt.encode(claims, weak, "RS256", headers={"kid": "weak"})
    with pytest.raises(oidc.NotAccepted):
        Oidc(settings(provider.url)).verify(token)
    # Negative control: nothing but the bound refuses it.
    monkeypatch.setattr(oidc, "RSA_BITS", 1024)
    assert Oidc(settings(provider.url)).verify(token).caller.role == "engineer"


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>Sign in</html>",
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"keys": 5}',
        b'{"keys": [5]}',
        b'{"keys": [{}]}',
        b'{"keys": [{"kty": "RSA", "kid": "RS256", "n": 5, "e": []}]}',
        b"[" * 100_000,
    ],
    ids=lambda answer: repr(answer[:30]),
)
def test_an_answer_that_is_no_set_of_keys_lets_nobody_in(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(provider, "answer", answer)
    with pytest.raises(oidc.NotAccepted):
        Oidc(settings(provider.url)).verify(provider.token())


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example/keys",
        "http://127.0.0.1.example/keys",
        "HTTP://id.example/keys",
        "http:///keys",
        "//id.example/keys",
        "ftp://id.example/keys",
        "",
    ],
)
def test_keys_come_over_https(url: str) -> None:
    with pytest.raises(UsageError, match="https only"):
        Oidc(settings(url))


@pytest.mark.parametrize(
    "url",
    ["https://id.example/keys", "http://127.0.0.1:8080/keys", "http://[::1]/k", "http://localhost"],
)
def test_http_is_for_a_provider_on_this_machine(url: str) -> None:
    Oidc(settings(url))


def test_a_redirect_away_from_https_is_not_followed(provider: Provider) -> None:
    """The library's own rule, which ours needs."""

    class Elsewhere(Handler):
        def do_GET(self) -> None:
            self.say(b"", 302, {"Location": provider.url})

    with web_server(Elsewhere) as port, pytest.raises(oidc.NotAccepted, match="cannot be fetched"):
        Oidc(settings(f"http://127.0.0.1:{port}/")).verify(provider.token())


def test_the_list_of_algorithms_is_what_refuses(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: an algorithm off the list is refused only because of the list."""
    verifier = Oidc(settings(provider.url))
    token = provider.token("ES256")
    monkeypatch.setattr(oidc, "ALGORITHMS", ("RS256", "EdDSA"))
    with pytest.raises(oidc.NotAccepted):
        verifier.verify(token)
    monkeypatch.undo()
    assert verifier.verify(token).caller.role == "engineer"


def test_roles_are_bound_to_groups_of_the_provider(provider: Provider, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    given = settings(provider.url, roles={"staff": "member"}, groups_claim="teams")
    with serve(url, oidc=given) as running:

        def bind(group: str, role: str, scope: str, place: str) -> None:
            body = {"group": group, "role": role, "scope": scope, "place": place}
            answer = running.client("admin").post("/v1/role-bindings", json=body)
            assert answer.status_code == 201, answer.text

        bind("vision-team", "viewer", "project", "default")
        bind("auditors", "auditor", "organisation", "")

        def reads(path: str, teams: object) -> int:
            return status(running, provider.token(groups=["staff"], teams=teams), path)

        assert reads("/v1/projects/default", None) == 404
        assert reads("/v1/projects/default", ["vision-team"]) == 200
        assert reads("/v1/projects/default", "vision-team") == 200
        assert reads("/v1/projects/default", ["x" * 300, 7, {"vision-team": 1}]) == 404
        assert reads("/v1/audit", ["vision-team"]) == 403
        assert reads("/v1/audit", ["auditors"]) == 200
        assert reads("/v1/corpora", ["vision-team"]) == 403
        assert reads("/v1/corpora", ["auditors"]) == 200
