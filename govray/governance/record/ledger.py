"""The ledger: what each optimizer step used, append-only, Merkle-hashed, signed as a note.

Three kinds of leaf stand in one tree.

* A ``Leaf`` belongs to every step: which positions of which streams it read, and how many rows and
  loss targets each corpus gave. Counts per layer group follow from the routes and are not repeated.
* ``GradientNorms`` belong to sampled steps: what was measured of each corpus's gradient.
* An ``EntropyProfile`` (``entropy_profile.py``) belongs to the steps that a policy's monitor
  names: what the weights after the step knew of each corpus.

There is no clock, attempt or host in a leaf. So a replay of the run makes the same bytes, and the
roots can be compared.

Invariants

* A leaf has one encoding: canonical JSON on one line, with every field that has a value. Another
  spelling of the same leaf is refused.
* The Merkle leaves (RFC 9162) are the lines without their newline. Of a file they are its own
  bytes, not what its leaves would be written as.
* A ``Leaf`` has no ``kind``, which tells the others apart. They stand directly behind the leaf of
  their step, gradient norms before a profile.
* Only what is non-zero was used, and only what was measured has a norm: the rest is absent.
* Branches are numbered from 0 without gaps. Within each, steps count without gaps: in branch 0 from
  0, in another from a step that the branch before it reached. Leaves that a rollback leaves behind
  stay, in their branch.

The signed tree head is a C2SP ``tlog-checkpoint`` (``signed_note.py``) with the origin
``govray.dev/ledger/<run id>``: a root cannot be passed off as another run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, ValidationError, model_validator

from govray.errors import Malformed
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.bounds import MAX_EXACT, Natural, Positive, ShortText
from govray.governance.formats.document import Digest, Document, Name
from govray.governance.record.entropy_profile import EntropyProfile

MAX_LEAVES = 10_000_000
MAX_LINE = 1 << 24
MAX_SQUARED_NORM = float(MAX_EXACT)
"""The largest that is written. From here to 1e21, our canonical JSON has no numbers."""

Group = ShortText
SquaredNorm = Annotated[float, Field(ge=0, le=MAX_SQUARED_NORM)]


class CorpusUse(Document):
    """What one step used of one corpus, over all ranks.

    Rows of conversations may have no loss target; of packed text each has one or more.

    Attributes:
        rows: How many.
        targets: Their loss targets.
        route: Digest of the route that a gate or a later phase sent the rows to. Absent if they
            take their own, in its first phase.
    """

    rows: Positive
    targets: Natural
    route: Digest | None = None


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
        # Fields hold bounded integers, names and digests: there is nothing that a check could find.
        return canonical_json.encode_plain(self.to_json())


class MeasuredPass(Document):
    """The rows of one stream that one rank put through the model together: corpus → rows."""

    rank: Natural
    stream: Digest
    corpora: Annotated[dict[Name, Positive], Field(min_length=1)]


class GradientNorms(Document):
    """What was measured of each corpus's gradient in one step.

    A piece is a pass's rows of one corpus. Its g is its part of a layer group's gradient that the
    optimizer saw: weighted, and divided by the group's count over all ranks.

    Attributes:
        passes: The piece layout, sorted by rank and stream; passes that have both in common stand
            in the order in which they ran. Equal gradients that are cut into other pieces have
            other norms, so the layout is part of what the numbers mean.
        squared_norms: Corpus → layer group → sum of ‖g‖² over the corpus's pieces. A group that
            could not be measured is absent.
    """

    kind: Literal["gradientNorms"] = "gradientNorms"
    branch: Natural = 0
    step: Natural
    passes: Annotated[tuple[MeasuredPass, ...], Field(min_length=1)]
    squared_norms: Annotated[
        dict[Name, Annotated[dict[Group, SquaredNorm], Field(min_length=1)]], Field(min_length=1)
    ]

    @model_validator(mode="after")
    def _sorted(self) -> Self:
        places = [(each.rank, each.stream) for each in self.passes]
        if places != sorted(places):
            raise ValueError("passes are not sorted by rank and stream")
        return self

    @property
    def line(self) -> bytes:
        """The leaf's canonical bytes, without newline."""
        return canonical_json.encode(self.to_json())


AnyLeaf: TypeAlias = Leaf | GradientNorms | EntropyProfile


def read_leaves(data: bytes) -> tuple[AnyLeaf, ...]:
    """The leaves in a ledger file.

    Raises:
        Malformed: A line is too long, not canonical or not a leaf, or the last newline is missing.
            There are too many lines, or a gap in the branches or steps. Gradient norms or a profile
            are not behind the leaf of their step. Names the line, counted from 1.
    """
    return _read(_split(data))


def _split(data: bytes) -> tuple[bytes, ...]:
    if data and not data.endswith(b"\n"):
        raise Malformed("the last line is cut off", where="ledger.jsonl")
    if data.count(b"\n") > MAX_LEAVES:
        raise Malformed(f"more than {MAX_LEAVES} leaves", where="ledger.jsonl")
    return tuple(data.split(b"\n")[:-1])


def _read(lines: Sequence[bytes]) -> tuple[AnyLeaf, ...]:
    leaves: list[AnyLeaf] = []
    expected: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        where = f"ledger.jsonl line {number}"
        if len(line) > MAX_LINE:
            raise Malformed(f"a leaf of more than {MAX_LINE} bytes", where=where)
        leaf = _read_leaf(line, where)
        if not isinstance(leaf, Leaf):
            _check_behind(leaf, leaves[-1] if leaves else None, where)
            leaves.append(leaf)
            continue
        if leaf.branch not in expected and leaf.branch != len(expected):
            raise Malformed(f"branch {leaf.branch} follows {len(expected)} branches", where=where)
        if leaf.branch and leaf.branch not in expected:
            if leaf.step > expected[leaf.branch - 1]:
                raise Malformed(
                    f"branch {leaf.branch} begins at step {leaf.step}, which the branch before it "
                    "did not reach",
                    where=where,
                )
        elif leaf.step != expected.get(leaf.branch, 0):
            raise Malformed(
                f"step {leaf.step} where step {expected.get(leaf.branch, 0)} was due", where=where
            )
        expected[leaf.branch] = leaf.step + 1
        leaves.append(leaf)
    return tuple(leaves)


def _check_behind(leaf: GradientNorms | EntropyProfile, before: AnyLeaf | None, where: str) -> None:
    may_follow = Leaf if isinstance(leaf, GradientNorms) else (Leaf, GradientNorms)
    if not isinstance(before, may_follow) or (before.branch, before.step) != (
        leaf.branch,
        leaf.step,
    ):
        what = (
            "gradient norms that are not behind the leaf of their step"
            if isinstance(leaf, GradientNorms)
            else "an entropy profile that is not behind the leaf of its step"
        )
        raise Malformed(f"{what} {leaf.step}", where=where)


def _read_leaf(line: bytes, where: str) -> AnyLeaf:
    # Nearly all lines are of steps. One that the leaf writes itself is canonical: less time.
    with suppress(ValidationError, ValueError, RecursionError):
        step = Leaf.model_validate_json(line, by_alias=True, by_name=False)
        if step.line == line:
            return step
    value = canonical_json.parse_canonical(line, where=where)
    kind = value.get("kind") if isinstance(value, dict) else None
    leaf: AnyLeaf
    if kind == "entropyProfile":
        leaf = EntropyProfile.from_json(value, where=where)
    elif kind is not None:
        leaf = GradientNorms.from_json(value, where=where)
    else:
        leaf = Leaf.from_json(value, where=where)
    _check_spelling(leaf, value, where)
    return leaf


def _check_spelling(leaf: AnyLeaf, value: canonical_json.JSON, where: str) -> None:
    """The line, which is the canonical encoding of ``value``, is the leaf's own."""
    if leaf.to_json() != value:
        raise Malformed(
            "another spelling of a leaf: a field that has a value is left out",
            where=where,
            do="Take the ledger from its source again, unedited",
        )


@dataclass(frozen=True)
class Ledger:
    """The leaves of one run, in the order in which they were appended.
    ``given`` are the lines of the file that they were read from; None if they were not read."""

    run: str
    leaves: Sequence[AnyLeaf]
    given: Sequence[bytes] | None = field(default=None, repr=False)

    @classmethod
    def read(cls, run: str, data: bytes) -> Self:
        """The ledger of ``run`` in a file of these bytes, to which root and size belong."""
        lines = _split(data)
        return cls(run, _read(lines), lines)

    @cached_property
    def steps(self) -> tuple[Leaf, ...]:
        """The leaves of the steps."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Leaf))

    @cached_property
    def norms(self) -> tuple[GradientNorms, ...]:
        """The gradient norms of the sampled steps."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, GradientNorms))

    @cached_property
    def profiles(self) -> tuple[EntropyProfile, ...]:
        """The entropy profiles."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, EntropyProfile))

    @property
    def origin(self) -> str:
        """The name under which the tree head is signed."""
        return origin(self.run)

    @cached_property
    def lines(self) -> Sequence[bytes]:
        """The Merkle leaves: the lines as they stand in the file, or as they will."""
        return tuple(leaf.line for leaf in self.leaves) if self.given is None else self.given

    @property
    def size(self) -> int:
        """The number of leaves of all kinds."""
        return len(self.leaves)

    @cached_property
    def root(self) -> bytes:
        """The RFC 9162 Merkle root over the lines, 32 bytes."""
        return merkle.root(self.lines)

    def root_at(self, size: int) -> bytes:
        """The root of the first ``size`` leaves, 32 bytes."""
        return merkle.root(self.lines[:size])

    @property
    def data(self) -> bytes:
        """The bytes of ``ledger.jsonl``."""
        return b"".join(line + b"\n" for line in self.lines)


def origin(run: str) -> str:
    """The checkpoint origin of a run."""
    return f"govray.dev/ledger/{run}"
