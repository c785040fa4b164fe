"""The ledger: one leaf per optimizer step, append-only, Merkle-hashed, signed as a note.

A leaf says which positions of which streams a step read and how many rows and loss targets each
corpus gave; counts per layer group follow from the routes and are not repeated. There is no clock,
attempt or host in a leaf, so a replay of the run makes the same bytes and the roots can be
compared.

Invariants

* A leaf has one encoding: canonical JSON on one line. The Merkle leaves (RFC 9162) are the lines
  without their newline.
* Only what is non-zero is written.
* Branches are numbered from 0 without gaps; within each, steps count from 0 without gaps. Leaves
  that a rollback leaves behind stay, in their branch.

The signed tree head is a C2SP ``tlog-checkpoint`` (``note.py``) with the origin
``govray.dev/ledger/<run id>``: a root cannot be passed off as another run's.

What this module does not do: decide what a step should have read (``plan.py``) or write files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Self

from pydantic import Field, model_validator

from govray.errors import Malformed
from govray.governance import canonical, merkle
from govray.governance.document import Digest, Document, Name
from govray.governance.keys import Signer
from govray.governance.note import sign_checkpoint

MAX_LEAVES = 10_000_000
MAX_LINE = 1 << 20

Natural = Annotated[int, Field(ge=0, le=(1 << 53) - 1)]
Positive = Annotated[int, Field(ge=1, le=(1 << 53) - 1)]


class CorpusUse(Document):
    """What one step used of one corpus, over all ranks."""

    rows: Positive
    targets: Positive


class Leaf(Document):
    """What one optimizer step used. ``streams`` maps a stream id to the half-open range of plan
    positions that it read, tombstones included."""

    branch: Natural = 0
    step: Natural
    world_size: Positive
    policy: Digest
    plan: Digest
    streams: dict[Digest, tuple[Natural, Natural]]
    corpora: dict[Name, CorpusUse]

    @model_validator(mode="after")
    def _non_zero(self) -> Self:
        for stream, (start, stop) in self.streams.items():
            if start >= stop:
                raise ValueError(f"stream {stream} has an empty range")
        return self

    @property
    def line(self) -> bytes:
        """The leaf's canonical bytes, without newline."""
        return canonical.encode(self.to_json())


def read_leaves(data: bytes) -> tuple[Leaf, ...]:
    """The leaves in a ledger file.

    Raises:
        Malformed: a line that is too long, not canonical or not a leaf, a missing last newline,
            too many lines, or a gap in the branches or steps. Names the line, counted from 1.
    """
    if data and not data.endswith(b"\n"):
        raise Malformed("the last line is cut off", where="ledger.jsonl")
    lines = data.split(b"\n")[:-1]
    if len(lines) > MAX_LEAVES:
        raise Malformed(f"more than {MAX_LEAVES} leaves", where="ledger.jsonl")
    leaves: list[Leaf] = []
    expected: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        where = f"ledger.jsonl line {number}"
        if len(line) > MAX_LINE:
            raise Malformed(f"a leaf of more than {MAX_LINE} bytes", where=where)
        leaf = Leaf.from_json(canonical.parse_canonical(line, where=where), where=where)
        if leaf.branch not in expected and leaf.branch != len(expected):
            raise Malformed(f"branch {leaf.branch} follows {len(expected)} branches", where=where)
        if leaf.step != expected.get(leaf.branch, 0):
            raise Malformed(
                f"step {leaf.step} where step {expected.get(leaf.branch, 0)} was due", where=where
            )
        expected[leaf.branch] = leaf.step + 1
        leaves.append(leaf)
    return tuple(leaves)


@dataclass(frozen=True)
class Ledger:
    """The leaves of one run, in the order in which they were appended."""

    run: str
    leaves: Sequence[Leaf]

    @property
    def origin(self) -> str:
        """The name under which the tree head is signed."""
        return origin(self.run)

    @cached_property
    def _lines(self) -> tuple[bytes, ...]:
        return tuple(leaf.line for leaf in self.leaves)

    @property
    def size(self) -> int:
        return len(self.leaves)

    @cached_property
    def root(self) -> bytes:
        """The RFC 9162 Merkle root over the lines, 32 bytes."""
        return merkle.root(self._lines)

    @property
    def data(self) -> bytes:
        """The bytes of ``ledger.jsonl``."""
        return b"".join(line + b"\n" for line in self._lines)

    def sign(self, signer: Signer) -> bytes:
        """The bytes of ``ledger.checkpoint``."""
        return sign_checkpoint(self.origin, self.size, self.root, signer)


def origin(run: str) -> str:
    """The checkpoint origin of a run."""
    return f"govray.dev/ledger/{run}"
