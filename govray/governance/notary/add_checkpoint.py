"""A witness's decision about one ``add-checkpoint`` request: which status, and why.

Source: https://c2sp.org/tlog-witness. Pure: request and last head in, an answer out. Its caller
holds the origin's state from reading the last head until the new one is on the disk.

Narrower than the standard allows: a checkpoint with extension lines is answered with 400, since no
ledger here has them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from govray.errors import Malformed, Refused
from govray.governance.formats import merkle, signed_note
from govray.governance.formats.dsse import decode_base64, encode_base64
from govray.governance.formats.keys import PublicKey
from govray.governance.formats.signed_note import Note, TreeHead, read_note, verify_checkpoint

MAX_PROOF = 63
MAX_REQUEST = signed_note.MAX_BYTES + 4096
SIZE_TYPE = "text/x.tlog.size"
_OLD = re.compile(rb"old (0|[1-9][0-9]{0,18})")


@dataclass(frozen=True)
class AddCheckpoint:
    """A parsed request. ``note``: the checkpoint; nothing of it is verified."""

    old: int
    proof: tuple[bytes, ...]
    note: Note
    data: bytes

    @classmethod
    def parse(cls, body: bytes) -> AddCheckpoint:
        """Read a request's body."""
        head, blank, data = body.partition(b"\n\n")
        first, *hashes = head.split(b"\n")
        match = _OLD.fullmatch(first)
        if not blank or match is None:
            raise Malformed("no line 'old SIZE', hashes and empty line", where="request")
        if len(hashes) > MAX_PROOF:
            raise Malformed(f"more than {MAX_PROOF} hashes", where="request")
        proof = tuple(decode_base64(each.decode("ascii", "replace")) for each in hashes)
        if any(len(each) != merkle.HASH_SIZE for each in proof):
            raise Malformed("a hash of another size", where="request")
        return cls(int(match[1]), proof, read_note(data), data)

    def body(self) -> bytes:
        """The request as it is sent."""
        lines = [f"old {self.old}", *(encode_base64(each) for each in self.proof)]
        return "".join(f"{line}\n" for line in [*lines, ""]).encode() + self.data


@dataclass(frozen=True)
class Declined:
    """An answer that is no cosignature."""

    status: int
    body: str
    kind: str = "text/plain; charset=utf-8"


def decide(
    request: AddCheckpoint, keys: Sequence[PublicKey] | None, latest: TreeHead | None
) -> Declined | None:
    """Whether a witness cosigns; None if it does.

    Args:
        keys: Those that may sign checkpoints of its origin; None for an unknown origin.
        latest: The last head of the origin that was cosigned, if any.
    """
    head = request.note.head
    if keys is None:
        return Declined(404, "unknown origin\n")
    if not any(_signed(request.data, key, head.origin) for key in keys):
        return Declined(403, "no signature by a key that is known for this origin\n")
    if request.old > head.size:
        return Declined(400, "the old size is larger than the checkpoint's\n")
    known = latest.size if latest else 0
    if request.old != known:
        return Declined(409, f"{known}\n", SIZE_TYPE)
    if latest and head.size == known and head.root != latest.root:
        return Declined(409, f"{known}\n", SIZE_TYPE)
    try:
        _check_proof(request, latest)
    except Refused:
        return Declined(422, "the consistency proof does not hold\n")
    return None


def _signed(data: bytes, key: PublicKey, origin: str) -> bool:
    try:
        verify_checkpoint(data, key, origin=origin)
    except Refused:
        return False
    return True


def _check_proof(request: AddCheckpoint, latest: TreeHead | None) -> None:
    head = request.note.head
    if request.old and latest:
        merkle.verify_consistency(latest.size, latest.root, head.size, head.root, request.proof)
    elif request.proof or (head.size == 0 and head.root != merkle.EMPTY_ROOT):
        raise Refused("nothing leads from an empty tree to this", where="consistency proof")
