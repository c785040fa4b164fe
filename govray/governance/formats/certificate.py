"""An X.509 certificate in a document: its DER, which parses, and nothing decided about it.

What trusts it, and for what, is for the document that it stands in. Its dates are judged by whoever
verifies what its key signed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from govray.errors import Malformed
from govray.governance.formats.dsse import decode_base64, encode_base64

MAX_BYTES = 16 * 1024


@dataclass(frozen=True)
class Certificate:
    """One certificate."""

    der: bytes

    def __post_init__(self) -> None:
        if len(self.der) > MAX_BYTES or self.x509.public_bytes(Encoding.DER) != self.der:
            raise _malformed()

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """The first certificate of a PEM file."""
        try:
            return cls(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))
        except ValueError:
            raise _malformed() from None

    @property
    def x509(self) -> x509.Certificate:
        """The parsed certificate."""
        try:
            return x509.load_der_x509_certificate(self.der)
        except ValueError:
            raise _malformed() from None


def _malformed() -> Malformed:
    return Malformed(
        "no X.509 certificate",
        where="certificate",
        do="Give the authority's certificate as a PEM file",
    )


def _from_json(value: object) -> Certificate:
    if isinstance(value, Certificate):
        return value
    if not isinstance(value, str):
        raise ValueError("a certificate should be its DER in base64")
    try:
        return Certificate(decode_base64(value))
    except Malformed as error:
        raise ValueError(f"a certificate: {error.what}") from None


CertificateField = Annotated[
    Certificate,
    PlainValidator(_from_json),
    PlainSerializer(lambda each: encode_base64(each.der), return_type=str),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
"""A certificate; in JSON its DER in base64."""
