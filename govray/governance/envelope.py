"""DSSE envelopes: sign bytes, verify the stored bytes.

Source: DSSE v1, https://github.com/secure-systems-lab/dsse (protocol.md,
envelope.md). A signature covers PAE(payloadType, payload), so it binds the type
and the exact bytes; nobody has to re-encode anything to verify it.

Stricter than the standard asks, so that content is spelt in one way: canonical
JSON (RFC 8785), canonical standard base64 (RFC 4648 section 4, padded, padding
bits zero), no unknown field, a bounded number of signatures. Envelopes of other
tools may be valid DSSE and still be refused here.

Invariants:
    * ``keyid`` is a hint for people. It decides nothing here: every key is
      tried against every signature.
    * An envelope's bytes are no name for what was signed: of a P-256 signature there are two
      spellings (``keys.py``), and key hints are signed by nobody. The payload's digest is.
    * What counts is the set of distinct keys that verify, so two signatures by
      one key, or one key under two names, count once.

It says which keys signed, not whether they may; that is `trust.py`. It does not
look into the payload; that is `statement.py`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from govray.errors import Malformed, Untrusted, UsageError
from govray.governance import canonical
from govray.governance.keys import PublicKey, Signer, sign_with

IN_TOTO = "application/vnd.in-toto+json"
"""Payload type of an in-toto Statement."""

MAX_SIGNATURES = 16
_MAX_TEXT = 256
_DO = "Take the envelope from its source again, unedited"


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding, the bytes that are signed.

    ``"DSSEv1" SP LEN(type) SP type SP LEN(payload) SP payload``, lengths in bytes
    as ASCII decimals.
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def encode_base64(data: bytes) -> str:
    """Return the one base64 text that `decode_base64` reads as ``data``."""
    return base64.b64encode(data).decode("ascii")


def decode_base64(text: str) -> bytes:
    """Return the bytes of canonical base64 (RFC 4648 section 4).

    Raises:
        Malformed: Another alphabet, white space, missing padding, or padding
            bits that are not zero.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("not base64 of the standard alphabet with padding", do=_DO) from None
    if base64.b64encode(data).decode("ascii") != text:
        raise Malformed("the base64 is not in its canonical form", do=_DO)
    return data


@dataclass(frozen=True)
class Signature:
    """One signature of an envelope; ``keyid`` is what its maker wrote beside it."""

    sig: bytes
    keyid: str | None


@dataclass(frozen=True)
class Envelope:
    """A payload, its type and at least one signature. Parsed does not mean verified."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(
        cls, data: bytes, *, limit: int = canonical.MAX_BYTES, where: str | None = None
    ) -> Self:
        """Return the envelope in ``data``, which may be at most ``limit`` bytes.

        Args:
            data: The whole file, canonical JSON, without a final newline.
            limit: Largest accepted length in bytes.
            where: What the bytes are, for errors.

        Raises:
            Malformed: Any departure from the one spelling of an envelope.
        """
        where = where or "envelope"
        value = canonical.parse_canonical(data, limit=limit, where=where)
        members = _object(value, {"payload", "payloadType", "signatures"}, where)
        payload_type = _text(members, "payloadType", where, limit=_MAX_TEXT)
        payload = _base64(members, "payload", where)
        entries = members["signatures"]
        if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_SIGNATURES:
            raise Malformed(
                f"'signatures' should be a list of 1 to {MAX_SIGNATURES}", where=where, do=_DO
            )
        return cls(payload_type, payload, tuple(_signature(entry, where) for entry in entries))

    def encode(self) -> bytes:
        """Return the envelope's one encoding, which `parse` reads."""
        return canonical.encode(
            {
                "payload": encode_base64(self.payload),
                "payloadType": self.payload_type,
                "signatures": [
                    {"sig": encode_base64(entry.sig)}
                    | ({} if entry.keyid is None else {"keyid": entry.keyid})
                    for entry in self.signatures
                ],
            }
        )

    def signed_by(self, keys: Iterable[PublicKey]) -> frozenset[str]:
        """Return the keyids of those ``keys`` whose signature the envelope carries.

        The keyids are computed from the keys, never read from the envelope.
        """
        message = pae(self.payload_type, self.payload)
        return frozenset(
            key.keyid
            for key in keys
            if any(_verifies(key, message, entry.sig) for entry in self.signatures)
        )

    def cosign(self, signers: Sequence[Signer]) -> bytes:
        """Return the encoded envelope with further signatures over the same payload.

        Raises:
            UsageError: No signer, a key that has already signed, or too many
                signatures.
        """
        return _sign(self, signers)


def sign_payload(
    payload: bytes, signers: Sequence[Signer], *, payload_type: str = IN_TOTO
) -> bytes:
    """Return the encoded envelope of ``payload``, signed by each of ``signers``.

    Raises:
        UsageError: No signer, the same key twice, or too many signatures.
    """
    return _sign(Envelope(payload_type, payload, ()), signers)


def _sign(envelope: Envelope, signers: Sequence[Signer]) -> bytes:
    if not signers:
        raise UsageError("an envelope needs at least one signer", do="Give a signing key")
    keys = [signer.public_key for signer in signers]
    repeated = envelope.signed_by(keys)
    if repeated or len(set(keys)) < len(keys):
        raise UsageError(
            "a key would sign the same envelope twice",
            do="Give each key once; two signatures by one key count as one",
        )
    if len(envelope.signatures) + len(signers) > MAX_SIGNATURES:
        raise UsageError(f"an envelope holds at most {MAX_SIGNATURES} signatures")
    message = pae(envelope.payload_type, envelope.payload)
    added = tuple(
        Signature(sign_with(signer, message), signer.public_key.keyid) for signer in signers
    )
    return Envelope(envelope.payload_type, envelope.payload, envelope.signatures + added).encode()


def _verifies(key: PublicKey, message: bytes, signature: bytes) -> bool:
    try:
        key.verify(message, signature)
    except Untrusted:
        return False
    return True


def _signature(value: canonical.JSON, where: str) -> Signature:
    where = f"{where}, signatures"
    members = _object(value, {"sig"}, where, optional={"keyid"})
    keyid = _text(members, "keyid", where, limit=_MAX_TEXT) if "keyid" in members else None
    return Signature(_base64(members, "sig", where), keyid)


def _object(
    value: canonical.JSON,
    required: set[str],
    where: str,
    *,
    optional: frozenset[str] | set[str] = frozenset(),
) -> dict[str, canonical.JSON]:
    if not isinstance(value, dict):
        raise Malformed("should be a JSON object", where=where, do=_DO)
    for name in sorted(value.keys() - required - optional):
        raise Malformed(f"unknown field '{name}'", where=where, do=_DO)
    for name in sorted(required - value.keys()):
        raise Malformed(f"missing field '{name}'", where=where, do=_DO)
    return value


def _text(members: dict[str, canonical.JSON], name: str, where: str, *, limit: int) -> str:
    value = members[name]
    if not isinstance(value, str) or not 1 <= len(value) <= limit:
        raise Malformed(
            f"field '{name}' should be a text of 1 to {limit} characters", where=where, do=_DO
        )
    return value


def _base64(members: dict[str, canonical.JSON], name: str, where: str) -> bytes:
    value = members[name]
    if not isinstance(value, str):
        raise Malformed(f"field '{name}' should be base64", where=where, do=_DO)
    try:
        return decode_base64(value)
    except Malformed as error:
        raise Malformed(f"field '{name}': {error.what}", where=where, do=_DO) from None
