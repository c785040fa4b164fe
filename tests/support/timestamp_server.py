"""Timestamp authorities: `openssl ts` behind a small HTTP server, with their own certificates."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from govray.governance.formats.certificate import Certificate
from govray.governance.trust.authority import TimestampAuthority
from tests.support.web_server import Handler, web_server

CONFIG = """
[tsa]
default_tsa = own
[own]
serial = {folder}/serial
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha384, sha512
accuracy = secs:1
ess_cert_id_alg = sha256
"""


@dataclass(frozen=True)
class Tsa:
    """One authority's folder: ``ca.pem`` is what trust roots name."""

    folder: Path
    name: str

    @classmethod
    def make(
        cls,
        folder: Path,
        name: str = "tsa",
        *,
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.TIME_STAMPING,
        until: timedelta = timedelta(days=3650),
    ) -> Tsa:
        folder.mkdir(parents=True)
        ca, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        issuer = _name(f"{name} CA")
        root = _certificate(issuer, issuer, ca, ca, timedelta(days=3650)).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        leaf = (
            _certificate(_name(name), issuer, own, ca, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        )
        pem = serialization.Encoding.PEM
        (folder / "ca.pem").write_bytes(root.sign(ca, hashes.SHA256()).public_bytes(pem))
        (folder / "tsa.pem").write_bytes(leaf.sign(ca, hashes.SHA256()).public_bytes(pem))
        (folder / "tsa.key").write_bytes(
            own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        (folder / "serial").write_text("01\n")
        (folder / "ts.cnf").write_text(CONFIG.format(folder=folder))
        return cls(folder, name)

    @property
    def named(self) -> TimestampAuthority:
        """What a trust root says of it."""
        certificate = Certificate.from_pem((self.folder / "ca.pem").read_bytes())
        return TimestampAuthority(name=self.name, certificates=(certificate,))

    def answer(self, query: bytes) -> bytes:
        asked, told = self.folder / "query", self.folder / "reply"
        asked.write_bytes(query)
        subprocess.run(
            [
                *("openssl", "ts", "-reply", "-section", "own"),
                *("-config", self.folder / "ts.cnf", "-queryfile", asked, "-out", told),
            ],
            check=True,
            capture_output=True,
            timeout=30,
        )
        return told.read_bytes()

    def stamp(self, message: bytes) -> bytes:
        """A token over ``message``, asked for by `openssl ts -query`."""
        data = self.folder / "message"
        data.write_bytes(message)
        query = subprocess.run(
            ["openssl", "ts", "-query", "-data", data, "-sha256", "-cert"],
            check=True,
            capture_output=True,
            timeout=30,
        )
        return self.answer(query.stdout)

    @contextmanager
    def serving(self) -> Iterator[str]:
        tsa = self

        class Replies(Handler):
            def do_POST(self) -> None:
                good = self.headers["Content-Type"] == "application/timestamp-query"
                kind = {"Content-Type": "application/timestamp-reply"}
                query = self.body()
                self.say(tsa.answer(query) if good else b"", 200 if good else 415, kind)

        with web_server(Replies) as port:
            yield f"http://127.0.0.1:{port}/"


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    own: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    until: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False
        )
    )
