"""An identity provider as a process: its keys over HTTPS, as docs/service.md names it."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.support.tree import ROOT

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
    (folder / "keys.json").write_text(json.dumps(keys))
    _certify(folder)
    with subprocess.Popen(
        [sys.executable, __file__, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = f"https://localhost:{int(process.stdout.readline())}"
            file = folder / "provider.yaml"
            file.write_text(documented().replace(EXAMPLE, address))
            yield Provided(address, file, folder / "tls.pem", key)
        finally:
            process.kill()


def _certify(folder: Path) -> None:
    """A certificate of ``localhost`` with its key, in one file; and the certificate alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "tls.pem").write_bytes(pem)
    (folder / "tls-key.pem").write_bytes(private + pem)


def main(folder: Path) -> None:
    """Serve the keys until killed, and say on which port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (folder / "keys.json").read_bytes() if self.path == "/keys" else b"{}"
            self.send_response(200 if self.path == "/keys" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls-key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_port, flush=True)
    server.serve_forever(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
