"""DSSE envelopes: sign bytes, verify the stored bytes.

Source: DSSE v1, https://github.com/secure-systems-lab/dsse (protocol.md,
envelope.md). A signature covers PAE(payloadType, payload), so it binds the type
and the exact bytes; nobody has to re-encode anything to verify it.

The form is stricter than the standard, so that content has one spelling. It is canonical JSON (RFC
8785) with canonical standard base64 (RFC 4648 section 4, padded, padding bits zero). It has no
unknown field and a bounded number of signatures. Envelopes of other tools may be valid DSSE and
still be refused here.

Invariants:
    * ``keyid`` is a hint for people. It decides nothing here: every key is
      tried against every signature.
    * The payload's digest names what was signed. An envelope's bytes do not: a P-256 signature
      has two spellings (``keys.py``), and nobody signs key hints.
    * What counts is the set of distinct keys that verify, so two signatures by
      one key, or one key under two names, count once.

It says which keys signed. Whether they may is for `trust_state.py`; the payload is read by
`statement.py`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from govray.errors import Malformed, Untrusted, UsageError
from govray.governance.formats import canonical_json
from govray.governance.formats.keys import PublicKey, Signer, sign_with

IN_TOTO = "application/vnd.in-toto+json"
"""Payload type of an in-toto Statement."""

MAX_SIGNATURES = 16
MAX_FRAME = 64 * 1024
"""Largest envelope in bytes, its payload not counted."""

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


def decode_base64(text: str | memoryview) -> bytes:
    """Return the bytes of canonical base64 (RFC 4648 section 4), given as text or in ASCII."""
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise Malformed("not base64 of the standard alphabet with padding", do=_DO) from None
    # Only the last four characters have two spellings, so nothing large is encoded again.
    last = text[-4:] if isinstance(text, str) else bytes(text[-4:]).decode("ascii")
    if base64.b64encode(data[-(len(data) % 3 or 3) :]).decode("ascii") != last:
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
        cls, data: bytes, *, limit: int = canonical_json.MAX_BYTES, where: str | None = None
    ) -> Self:
        """Return the envelope in ``data``, which may be at most ``limit`` bytes.
        ``data``: the whole file, canonical JSON, without a final newline."""
        where = where or "envelope"
        frame, text = _take_payload(data, limit, where)
        value = canonical_json.parse_canonical(frame, limit=MAX_FRAME, where=where)
        members = _object(value, {"payload", "payloadType", "signatures"}, where)
        payload_type = _text(members, "payloadType", where, limit=_MAX_TEXT)
        # A text that was not taken out is no text: `_base64` says so.
        payload = _base64(members if text is None else {"payload": text}, "payload", where)
        entries = members["signatures"]
        if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_SIGNATURES:
            raise Malformed(
                f"'signatures' should be a list of 1 to {MAX_SIGNATURES}", where=where, do=_DO
            )
        return cls(payload_type, payload, tuple(_signature(entry, where) for entry in entries))

    def encode(self) -> bytes:
        """Return the envelope's one encoding, which `parse` reads."""
        return canonical_json.encode(
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
        The keyids are computed from the keys, never read from the envelope."""
        asked = {key.keyid: key for key in keys}
        if untried := [key for keyid, key in asked.items() if keyid not in self._tried]:
            message = pae(self.payload_type, self.payload)
            for key in untried:
                self._tried[key.keyid] = any(
                    _verifies(key, message, entry.sig) for entry in self.signatures
                )
        return frozenset(keyid for keyid in asked if self._tried[keyid])

    @cached_property
    def _tried(self) -> dict[str, bool]:
        """Keyid, computed from its key, → whether it signed: each key is tried once."""
        return {}

    def cosign(self, signers: Sequence[Signer]) -> bytes:
        """Return the encoded envelope with further signatures over the same payload."""
        return _sign(self, signers)


def sign_payload(
    payload: bytes, signers: Sequence[Signer], *, payload_type: str = IN_TOTO
) -> bytes:
    """Return the encoded envelope of ``payload``, signed by each of ``signers``."""
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


_HEAD = b'{"payload":"'


def _take_payload(data: bytes, limit: int, where: str) -> tuple[bytes, memoryview | None]:
    """The envelope with an empty payload, and the text of its payload.

    No key sorts before ``payload``, so in canonical JSON it comes first and is found without
    parsing. At most `MAX_FRAME` bytes are parsed before a signature is checked. Where it does not
    come first the whole is the frame, for the parser to say what is wrong.
    """
    if len(data) > limit:
        raise Malformed(
            f"{len(data)} bytes of JSON exceed the limit of {limit}", where=where, do=_DO
        )
    end = data.find(b'"', len(_HEAD)) if data.startswith(_HEAD) else -1
    frame, text = data, None
    if end >= 0:
        frame = _HEAD + data[end : end + MAX_FRAME + 1]
        text = memoryview(data)[len(_HEAD) : end]
    if len(frame) > MAX_FRAME:
        raise Malformed(
            f"an envelope has at most {MAX_FRAME} bytes beside its payload", where=where, do=_DO
        )
    return frame, text


def _verifies(key: PublicKey, message: bytes, signature: bytes) -> bool:
    try:
        key.verify(message, signature)
    except Untrusted:
        return False
    return True


def _signature(value: canonical_json.JSON, where: str) -> Signature:
    where = f"{where}, signatures"
    members = _object(value, {"sig"}, where, optional={"keyid"})
    keyid = _text(members, "keyid", where, limit=_MAX_TEXT) if "keyid" in members else None
    return Signature(_base64(members, "sig", where), keyid)


def _object(
    value: canonical_json.JSON,
    required: set[str],
    where: str,
    *,
    optional: frozenset[str] | set[str] = frozenset(),
) -> dict[str, canonical_json.JSON]:
    if not isinstance(value, dict):
        raise Malformed("should be a JSON object", where=where, do=_DO)
    for name in sorted(value.keys() - required - optional):
        raise Malformed(f"unknown field '{name}'", where=where, do=_DO)
    for name in sorted(required - value.keys()):
        raise Malformed(f"missing field '{name}'", where=where, do=_DO)
    return value


def _text(members: dict[str, canonical_json.JSON], name: str, where: str, *, limit: int) -> str:
    value = members[name]
    if not isinstance(value, str) or not 1 <= len(value) <= limit:
        raise Malformed(
            f"field '{name}' should be a text of 1 to {limit} characters", where=where, do=_DO
        )
    return value


def _base64(
    members: Mapping[str, canonical_json.JSON | memoryview], name: str, where: str
) -> bytes:
    value = members[name]
    if not isinstance(value, str | memoryview):
        raise Malformed(f"field '{name}' should be base64", where=where, do=_DO)
    try:
        return decode_base64(value)
    except Malformed as error:
        raise Malformed(f"field '{name}': {error.what}", where=where, do=_DO) from None
