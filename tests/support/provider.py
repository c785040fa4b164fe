"""An identity provider's keys over HTTPS, as docs/service.md names it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.tree import ROOT
from tests.support.web_server import Handler, certified, web_server

PAGE = ROOT / "docs" / "service.md"
EXAMPLE = "https://id.example"


@dataclass(frozen=True)
class Provided:
    """A provider that runs. ``file`` is the file of the docs, with its address."""

    address: str
    file: Path
    certificate: Path
    key: ec.EllipticCurvePrivateKey

    def token(self, *groups: str, **more: str) -> str:
        """A token as the provider would give one to a member of ``groups``."""
        now = int(time.time())
        claims = {"iss": self.address, "aud": "govray", "sub": "ada", "groups": list(groups)}
        times = {"iat": now, "exp": now + 600}
        return jwt.encode({**claims, **times, **more}, self.key, "ES256", headers={"kid": "one"})


def documented() -> str:
    """The provider's file, word for word as docs/service.md has it."""
    (found,) = re.findall(r"```yaml\n(issuer:.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


@contextmanager
def provided(folder: Path) -> Iterator[Provided]:
    """A provider whose files lie in ``folder``."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    keys = {"keys": [{**public, "kid": "one", "use": "sig", "alg": "ES256"}]}

    class Keys(Handler):
        def do_GET(self) -> None:
            self.say_json(200 if self.path == "/keys" else 404, keys)

    with web_server(Keys, tls=certified(folder)) as port:
        address = f"https://localhost:{port}"
        file = folder / "provider.yaml"
        file.write_text(documented().replace(EXAMPLE, address))
        yield Provided(address, file, folder / "tls.crt", key)
