"""The write-ahead file of ledger leaves: canonical lines, in the order of branches and steps.

Rank 0 appends a step's leaf once the step is done. Behind it come the gradient norms if they were
sampled, and the entropy profile if one was made. A step that is repeated after a restart must
produce the leaf that is already there. If it does not, the data, the plan or the code changed, and
the run stops. That comparison leaves out the world size, which a resize changes. It leaves out
gradient norms, because not every device repeats a float. The lines of the repeated step replace
those recorded before, here and in the ledger. A profile is measured too, but decisions rest on it:
the first recorded one stays. It is on the disk before any decision follows from it. Leaves that a
rollback left behind stay in their branch. This file is never signed: the driver signs the leaves of
a committed checkpoint. Lines lost with a machine cost nothing: their steps are in the checkpoint,
or run and recorded again.

An append costs the same at any step. Only a repeated step whose lines changed moves others: those
of the later steps, which a run does once more since its last commit.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left, insort
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from govray.errors import Refused
from govray.governance.record.entropy_profile import EntropyProfile
from govray.governance.record.ledger import AnyLeaf, GradientNorms, Leaf, read_leaves
from govray.storage.atomic_file import write_whole
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

FILE = "ledger.ahead.jsonl"

_Place: TypeAlias = tuple[int, int]
"""Branch and step: the order of the file."""
_Recorded: TypeAlias = tuple[AnyLeaf, ...]
"""A step's leaf, and what stands behind it."""


class WriteAhead:
    """Appends leaves to one file.

    Args:
        path: The file, created if absent.
        leaves: Leaves of the checkpoint that the run resumes from.

    Attributes:
        leaves: Of all earlier branches, and of this one's steps so far, of all kinds.

    Raises:
        Refused: The file holds another leaf for a step of the checkpoint's.
    """

    def __init__(self, path: Place, leaves: tuple[AnyLeaf, ...], branch: int = 0) -> None:
        self._path = path
        self._branch = branch
        self._file = LogFile(path)
        self._recorded = by_step(_complete_lines(self._file))
        self._offsets: dict[_Place, int] = {}
        resumed = by_step(leaves)
        for done, *_ in resumed.values():
            self._compare(done)
        # What follows the last whole line is a write that a crash cut short.
        self._recorded |= resumed
        self._places = sorted(self._recorded)
        left_behind = {place: each for place, each in self._recorded.items() if place[0] < branch}
        behind = left_behind | resumed
        self.leaves = [leaf for place in sorted(behind) for leaf in behind[place]]
        self._file.replace(self._lines_from((0, 0), 0))

    def append(self, leaf: Leaf, norms: GradientNorms | None = None) -> None:
        """Record one step, and its gradient norms if they were sampled.
        Raises ``Refused``: the file holds another leaf for this step."""
        self._compare(leaf)
        place = leaf.branch, leaf.step
        recorded = self._recorded.get(place, ())
        profile = tuple(each for each in recorded if isinstance(each, EntropyProfile))
        new: _Recorded = ((leaf,) if norms is None else (leaf, norms)) + profile
        if recorded != new:
            if not recorded:
                insort(self._places, place)
            self._recorded[place] = new
            self._write_from(place)
        if leaf.branch == self._branch:  # else it is there already: a repeated step
            self.leaves += new

    def note(self, profile: EntropyProfile) -> None:
        """Record the profile of the step that was appended last; on the disk when this returns."""
        place = profile.branch, profile.step
        recorded = self._recorded[place]
        if any(isinstance(each, EntropyProfile) for each in recorded):
            return
        self._recorded[place] = (*recorded, profile)
        self._write_from(place, durable=True)
        if profile.branch == self._branch:
            self.leaves.append(profile)

    def _write_from(self, place: _Place, *, durable: bool = False) -> None:
        """Put this step's lines in their place; those of later steps move behind them.
        A crash in between loses lines at the end, and leaves what stands before them."""
        offset = self._offsets.get(place, self._end)
        self._file.write_from(offset, self._lines_from(place, offset), durable=durable)

    def _lines_from(self, place: _Place, offset: int) -> bytes:
        """The lines of this step and those after it; notes where each will stand."""
        lines: list[bytes] = []
        for later in self._places[bisect_left(self._places, place) :]:
            self._offsets[later] = offset
            lines.append(_lines(self._recorded[later]))
            offset += len(lines[-1])
        self._end = offset
        return b"".join(lines)

    def _compare(self, leaf: AnyLeaf) -> None:
        recorded, *_ = self._recorded.get((leaf.branch, leaf.step), (leaf,))
        assert isinstance(leaf, Leaf)
        if recorded.model_copy(update={"world_size": leaf.world_size}) != leaf:
            raise Refused(
                f"step {leaf.step} does not repeat the leaf recorded for it",
                where=str(self._path),
                do="Data, plan or code changed under the run; start a new run",
            )


def recorded_leaves(run_folder: Place) -> tuple[AnyLeaf, ...]:
    return _complete_lines(LogFile(run_folder / FILE))


def recorded_steps(run_folder: Place) -> int:
    """The first step that a run's newest branch has not recorded; 0 without a branch."""
    return max(by_step(recorded_leaves(run_folder)), default=(0, -1))[1] + 1


def _complete_lines(file: LogFile) -> tuple[AnyLeaf, ...]:
    data = file.read()
    return read_leaves(data[: data.rfind(b"\n") + 1])


def by_step(leaves: Iterable[AnyLeaf]) -> dict[_Place, _Recorded]:
    """(Branch, step) → the step's leaf, with what stands behind it."""
    recorded: dict[_Place, _Recorded] = {}
    for leaf in leaves:
        if isinstance(leaf, Leaf):
            recorded[leaf.branch, leaf.step] = (leaf,)
        else:
            recorded[leaf.branch, leaf.step] += (leaf,)
    return recorded


def _lines(leaves: Iterable[AnyLeaf]) -> bytes:
    return b"".join(leaf.line + b"\n" for leaf in leaves)


SEGMENT_BYTES = 1 << 16
"""A segment of this size is followed by another. Each append sends what it has so far."""


# Objects cannot be appended to. So on a store the file is a folder of segments, each named for the
# offset at which it begins. An append writes the last segment anew. A full segment never changes
# unless the file is rewritten from within it. A kill between two writes loses lines at the end,
# never lines before others.


class LogFile:
    """The lines at a place; one process writes them.
    ``path``: on a store, the folder of segments."""

    def __init__(self, path: Place) -> None:
        self._path = path
        self._segments: dict[int, tuple[int, bytes]] = {}  # begin → length, SHA-256
        self._last = b""

    def read(self) -> bytes:
        if isinstance(self._path, Path):
            return self._path.read_bytes() if self._path.exists() else b""
        self._segments.clear()
        found: list[bytes] = []
        size = 0
        for name in sorted(self._path.walk_files()):
            if name != _name(size):
                continue  # what a kill left behind a gap
            data = (self._path / name).read_bytes()
            self._note(size, data)
            found.append(data)
            size += len(data)
        return b"".join(found)

    def replace(self, data: bytes) -> None:
        """Let ``data`` be all of it. On a disk whole or not at all."""
        if isinstance(self._path, Path):
            write_whole(self._path, data)
        else:
            self._write(self._path, 0, data)

    def write_from(self, offset: int, data: bytes, *, durable: bool) -> None:
        """Let ``data`` be what follows from ``offset`` on.

        Args:
            offset: At most the length.
            data: Whole lines.
            durable: Whether it is on the disk when this returns. On a store it always is.
        """
        if isinstance(self._path, BucketPath):
            self._write(self._path, offset, data)
            return
        with self._path.open("r+b") as file:
            file.seek(offset)
            file.truncate()
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())

    def _write(self, path: BucketPath, offset: int, data: bytes) -> None:
        begin = max((each for each in self._segments if each <= offset), default=0)
        if kept := offset - begin:
            data = self._held(path, begin)[:kept] + data
        pieces = _cut(begin, data)
        for start in sorted(pieces):
            if self._segments.get(start) != _summary(pieces[start]):
                break
            self._last = pieces.pop(start)  # it is there
            begin = start + 1
        # What is old behind the first new byte goes before that byte is written.
        for gone in sorted((each for each in self._segments if each >= begin), reverse=True):
            if gone not in list(pieces)[:1]:
                (path / _name(gone)).unlink(missing_ok=True)
                del self._segments[gone]
        for start, piece in pieces.items():
            (path / _name(start)).write_bytes(piece)
            self._note(start, piece)

    def _held(self, path: BucketPath, begin: int) -> bytes:
        """The bytes of a segment; of the last one they are at hand."""
        if begin == max(self._segments):
            return self._last
        return (path / _name(begin)).read_bytes()

    def _note(self, begin: int, data: bytes) -> None:
        self._segments[begin] = _summary(data)
        if begin == max(self._segments):
            self._last = data


def _cut(begin: int, data: bytes) -> dict[int, bytes]:
    """Begin → bytes of the segments that ``data`` makes, cut behind newlines."""
    pieces: dict[int, bytes] = {}
    while len(data) > SEGMENT_BYTES:
        stop = data.find(b"\n", SEGMENT_BYTES - 1) + 1
        if not 0 < stop < len(data):
            break
        pieces[begin], data = data[:stop], data[stop:]
        begin += stop
    return pieces | {begin: data}


def _name(begin: int) -> str:
    return f"{begin:015d}.jsonl"


def _summary(data: bytes) -> tuple[int, bytes]:
    return len(data), hashlib.sha256(data).digest()
