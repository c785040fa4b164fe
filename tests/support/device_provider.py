"""An identity provider with the device flow (RFC 8628), over HTTP on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from govray.platform.service.http.settings import OidcSettings
from tests.support.web_server import Handler, web_server

CLIENT = "govray-cli"
CODE = "WDJB-MJHT"
DEVICE_CODE = "GmRhmhcxhwAzkoEqiMEg_DnyEysNkuNhszIySk9eS"


@dataclass
class DeviceProvider:
    """The provider, and what it was asked."""

    url: str = ""
    answers: list[str] = field(default_factory=lambda: ["granted"])
    opaque: bool = False
    issuer: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def settings(self) -> OidcSettings:
        return OidcSettings(
            issuer=self.url,
            audience="govray",
            jwks_url=f"{self.url}/keys",
            roles={"ml-engineers": "engineer"},
            client_id=CLIENT,
        )

    def token(self) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "aud": "govray", "sub": "ada", "groups": ["ml-engineers"]}
        times = {"iat": now, "exp": now + 600}
        return jwt.encode({**claims, **times}, self.key, "ES256", headers={"kid": "one"})

    def get(self, path: str) -> dict[str, Any] | None:
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.issuer or self.url,
                "device_authorization_endpoint": f"{self.url}/device",
                "token_endpoint": f"{self.url}/token",
            } | {key: value for key, value in self.more.items() if key.endswith("_endpoint")}
        if path == "/keys":
            public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key()))
            return {"keys": [{**public, "kid": "one", "use": "sig"}]}
        return None

    def post(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if path == "/device":
            whole = {
                "device_code": DEVICE_CODE,
                "user_code": CODE,
                "verification_uri": f"{self.url}/activate",
                "expires_in": 600,
                "interval": 0.05,
            } | self.more
            return 200, {key: value for key, value in whole.items() if value is not None}
        self.asked.append(form)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "granted":
            token = self.token()
            access = "opaque" if self.opaque else token
            return 200, {"access_token": access, "id_token": token, "expires_in": 600}
        if answer == "broken":
            return 503, {}
        return 400, {"error": answer}


@contextmanager
def device_provider() -> Iterator[DeviceProvider]:
    made = DeviceProvider()

    class Answers(Handler):
        def do_GET(self) -> None:
            found = made.get(self.path)
            self.say_json(404 if found is None else 200, found or {})

        def do_POST(self) -> None:
            form = {k: v[0] for k, v in parse_qs(self.body().decode()).items()}
            self.say_json(*made.post(self.path, form))

    with web_server(Answers) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made
