"""An identity provider over HTTP on this machine: discovery, sign-in, tokens and keys."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from govray.platform.service.http.settings import OidcSettings
from tests.support.web_server import Handler, web_server

CLIENT = "govray-pages"
ROLES = {"ml-engineers": "engineer", "compliance": "auditor", "suppliers": "supplier"}


@dataclass
class IdentityProvider:
    """What it answers, and what it was asked."""

    issuer: str = ""
    who: dict[str, Any] = field(default_factory=lambda: {"sub": "ada", "groups": ["ml-engineers"]})
    document: dict[str, Any] = field(default_factory=dict)
    back: dict[str, str | None] = field(default_factory=dict)
    token: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    secret: str | None = None
    checks_verifier: bool = True
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def settings(self, redirect_url: str, **more: Any) -> OidcSettings:
        """What a service says of this provider."""
        given: dict[str, Any] = {
            "issuer": self.issuer,
            "audience": "govray",
            "jwks_url": f"{self.issuer}/keys",
            "roles": ROLES,
            "client_id": CLIENT,
            "redirect_url": redirect_url,
        }
        return OidcSettings(**(given | more))

    def metadata(self) -> dict[str, Any]:
        whole = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }
        return whole | self.document

    def keys(self) -> dict[str, Any]:
        made = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key()))
        return {"keys": [{**made, "kid": "one", "use": "sig", "alg": "ES256"}]}

    def authorize(self, asked: dict[str, str]) -> str:
        """Where a browser is sent on to, which asked so."""
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        answer: dict[str, str | None] = {"code": code, "state": asked["state"], "iss": self.issuer}
        kept = {k: v for k, v in (answer | self.back).items() if v is not None}
        return f"{asked['redirect_uri']}?{urlencode(kept)}"

    def exchange(self, form: dict[str, str], header: str | None) -> tuple[int, dict[str, Any]]:
        """Status and answer of the token endpoint."""
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or asked["redirect_uri"] != form["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        if self.checks_verifier and asked["code_challenge"] != challenge:
            return 400, {"error": "invalid_grant"}
        if self.secret is not None and not self._knows_client(form, header):
            return 401, {"error": "invalid_client"}
        access = secrets.token_urlsafe(16)
        half = base64.urlsafe_b64encode(hashlib.sha256(access.encode()).digest()[:16])
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            "at_hash": half.rstrip(b"=").decode(),
            **self.who,
            **self.claims,
        }
        kept = {key: value for key, value in claims.items() if value is not None}
        token = jwt.encode(kept, self.key, "ES256", headers={"kid": "one"} | self.header)
        answer = {"token_type": "Bearer", "access_token": access, "id_token": token}
        return 200, answer | self.token

    def _knows_client(self, form: dict[str, str], header: str | None) -> bool:
        pair = base64.b64encode(f"{CLIENT}:{self.secret}".encode()).decode()
        return header == f"Basic {pair}" or form.get("client_secret") == self.secret

    def restore(self) -> None:
        fresh = IdentityProvider()
        for name in ("who", "document", "back", "token", "claims", "header", "secret"):
            setattr(self, name, getattr(fresh, name))
        self.checks_verifier = True
        self.asked.clear()


@contextmanager
def identity_provider(host: str = "127.0.0.1") -> Iterator[IdentityProvider]:
    """One that runs. As ``localhost`` it is another site than a service at ``127.0.0.1``."""
    made = IdentityProvider()

    class Answers(Handler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query))
            made.asked.append((parts.path, query))
            if parts.path == "/authorize":
                self.say(b"", 302, {"Location": made.authorize(query)})
            elif parts.path == "/keys":
                self.say_json(200, made.keys())
            elif parts.path == "/.well-known/openid-configuration":
                self.say_json(200, made.metadata())
            else:
                self.say_json(404, {})

        def do_POST(self) -> None:
            form = dict(parse_qsl(self.body().decode()))
            made.asked.append((self.path, form))
            self.say_json(*made.exchange(form, self.headers.get("Authorization")))

    with web_server(Answers) as port:
        made.issuer = f"http://{host}:{port}"
        yield made
