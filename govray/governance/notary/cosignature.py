"""Cosignatures of ledgers' heads: C2SP tlog-cosignature, its Ed25519 type (``cosignature/v1``).

A witness signs a head only if it extends the last one of that ledger that it signed. So two
histories of one run cannot both be cosigned by witnesses that keep their state.

Source: https://c2sp.org/tlog-cosignature. A signature line holds key ID, time and signature. The
key ID is the start of SHA-256(name || newline || 0x04 || 32-byte key); the time is in seconds,
big-endian. Signed are a line ``cosignature/v1``, a line of the time, and the note's text.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from govray.errors import Malformed, Refused, UsageError
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.keys import PublicKey, Signer, sign_with
from govray.governance.formats.signed_note import Note, TreeHead, read_note, signature_line
from govray.governance.trust.trust_state import TrustState
from govray.governance.trust.witness_policy import LedgerWitness

_TYPE = b"\x04"
_TIME = struct.Struct(">Q")
_SIGNATURE = 64
_LATEST = 253_402_300_799
"""The last second of the year 9999, after which `datetime` has no time."""


@dataclass(frozen=True)
class Cosignature:
    """A witness's word that it saw a head, extending what it saw before.
    ``time``: when it signed, by its own clock; aware, in UTC."""

    witness: str
    time: datetime

    def __str__(self) -> str:
        return f"{self.witness} at {format_time(self.time)}"


def key_id(name: str, key: PublicKey) -> bytes:
    """The 4-byte key ID under which a witness cosigns.
    Raises ``UsageError``: the key is not Ed25519."""
    if key.algorithm != "ed25519":
        raise UsageError(
            "a witness cosigns with Ed25519, and this key is of another kind",
            where=f"witness {name}",
            do="Make a key for the witness alone: govray keys new witness.pem",
        )
    return hashlib.sha256(name.encode() + b"\n" + _TYPE + key.raw).digest()[:4]


def cosign(text: str, name: str, signer: Signer, *, at: datetime) -> str:
    """The signature line of a witness over a checkpoint's text, with its newline.
    ``text``: origin, size and root, each with its newline."""
    seconds = int(at.timestamp())
    signature = sign_with(signer, _message(text, seconds))
    return signature_line(name, key_id(name, signer.public_key) + _TIME.pack(seconds) + signature)


def cosignature_of(note: Note, witness: LedgerWitness) -> Cosignature | None:
    """The witness's cosignature in ``note``; None if it has none.
    Raises ``Refused``: one in its name and by its key ID does not verify, or there are two."""
    expected = (witness.name, key_id(witness.name, witness.key))
    ours = [signed for name, kid, signed in note.signatures if (name, kid) == expected]
    if not ours:
        return None
    where = f"cosignature of {witness.name}"
    if len(ours) > 1:
        raise Malformed("it stands there twice", where=where)
    if len(ours[0]) != _TIME.size + _SIGNATURE:
        raise Malformed("it is no time and Ed25519 signature", where=where)
    (seconds,) = _TIME.unpack(ours[0][: _TIME.size])
    if seconds > _LATEST:
        raise Malformed("its time is out of range", where=where)
    try:
        witness.key.verify(_message(note.text, seconds), ours[0][_TIME.size :])
    except Refused as error:
        raise Refused(error.what, where=where) from None
    return Cosignature(witness.name, datetime.fromtimestamp(seconds, UTC))


def check_cosignatures(
    trust: TrustState, data: bytes | None, head: TreeHead, *, started: str, at: datetime
) -> tuple[Cosignature, ...]:
    """The verifier's sixteenth step; empty if there is no cosigned head.

    Args:
        head: The ledger's, verified.
        at: Reference time, aware.

    Raises:
        Refused: The note is of another head, or a known witness's signature in it does not verify.
            Or its time contradicts the run's or the reference time.
    """
    if data is None:
        return ()
    note = read_note(data)
    if note.head != head:
        stale = note.head.origin == head.origin and note.head.size < head.size
        raise Refused(
            f"the cosigned head is stale: of {note.head.size} leaves, the ledger has {head.size}"
            if stale
            else "the cosigned head is not the ledger's",
            where="cosigned head",
            do="Ask the witnesses again: govray witness ask MODEL"
            if stale
            else "Keep both heads: if the origin is the same, they show two histories of one run",
        )
    policy = trust.root.witness_policy
    found = []
    for witness in policy.witnesses if policy else ():
        if (cosignature := cosignature_of(note, witness)) is None:
            continue
        where = f"cosignature of {witness.name}"
        if cosignature.time > at:
            raise Refused(f"made {cosignature}, after the reference time", where=where)
        if cosignature.time < parse_time(started):
            raise Refused(f"made {cosignature}, before the run began at {started}", where=where)
        found.append(cosignature)
    return tuple(found)


def missing_witnesses(trust: TrustState, found: Sequence[Cosignature]) -> int | None:
    """How many cosignatures the root's policy still lacks; None if it has no policy."""
    policy = trust.root.witness_policy
    return None if policy is None else max(0, policy.threshold - len(found))


def _message(text: str, seconds: int) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()
