"""The passages of one part of a corpus, as runs that `index_build` puts together.

A part gives files beside each other, for whoever builds the index and nobody else:

* ``.entries``: of each record what its Merkle leaf is made of, 32 bytes.
* ``.rows``: its passages (``ROW``), in order. Records are counted within the part.
* ``.bands``: runs of at most `RUN` passages. Each has, band by band, its entries in ascending
  order. Passages are counted within the part.

Memory: the part's content, 100 MB for the passages of a run, and 40 MB for their shingles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from govray.data.corpus import read_part
from govray.data.similarity.minhash import (
    BANDS,
    PASSAGE,
    band_keys,
    in_bands,
    passage_signatures,
    words,
)
from govray.data.similarity.passage_index import ENTRY, ROW, Entries
from govray.governance.policy import record_commitment
from govray.storage.place import Place

RUN = 1 << 16
_TOGETHER = 1 << 18  # bytes of text whose shingles are in memory


@dataclass(frozen=True)
class PartRuns:
    """What was written of one part.

    Attributes:
        stem: Its files' path without suffix.
        runs: The passages of each run.
    """

    stem: Path
    records: int
    runs: tuple[int, ...]

    @property
    def passages(self) -> int:
        return sum(self.runs)

    def entries(self) -> bytes:
        """Of each record, 32 bytes."""
        return self.stem.with_suffix(".entries").read_bytes()

    def rows(self, first: int) -> Iterator[npt.NDArray[np.void]]:
        """The passages in pieces, where ``first`` is the number of the part's first record."""
        with self.stem.with_suffix(".rows").open("rb") as file:
            while data := file.read(ROW.itemsize * RUN):
                rows = np.frombuffer(bytearray(data), ROW)
                rows["record"] += np.uint32(first)
                yield rows

    def sorted_runs(self, band: int, first: int) -> Iterator[SortedRun]:
        """A band's runs, where ``first`` is the number of the part's first passage."""
        before = 0
        for count in self.runs:
            start = before * BANDS + band * count
            yield SortedRun(self.stem.with_suffix(".bands"), start, count, first)
            before += count


@dataclass(frozen=True)
class SortedRun:
    """Ascending entries in a file, from the ``start``-th on; their passages count from ``first``.
    ``first`` is added to what is read."""

    path: Path
    start: int
    count: int
    first: int = 0

    def read(self, start: int, count: int) -> Entries:
        """At most ``count`` of them, from the ``start``-th on. Raises ``OSError``."""
        count = min(count, self.count - start)
        offset = (self.start + start) * ENTRY.itemsize
        return np.fromfile(self.path, ENTRY, count, offset=offset) + np.uint64(self.first)


def write_runs(part: Place, secret: bytes, stem: Path) -> PartRuns:
    """Write the runs of a part. ``stem``: where, without suffix."""
    contents = read_part(part)
    entries = b"".join(
        record_commitment.entry(hashlib.sha256(content).digest(), secret) for content in contents
    )
    stem.with_suffix(".entries").write_bytes(entries)
    runs: list[int] = []
    before = 0
    with (
        stem.with_suffix(".rows").open("wb") as rows_file,
        stem.with_suffix(".bands").open("wb") as bands_file,
    ):
        for rows in _runs(contents):
            rows.tofile(rows_file)
            _write_bands(rows, before, bands_file)
            before += len(rows)
            runs.append(len(rows))
    return PartRuns(stem, len(contents), tuple(runs))


def _runs(contents: Sequence[memoryview]) -> Iterator[npt.NDArray[np.void]]:
    """The passages of a part, in pieces of `RUN`; the last is shorter."""
    held: list[npt.NDArray[np.void]] = []
    size = 0
    for first, some in _batches(contents):
        owners, signatures = passage_signatures([words(content) for content in some], PASSAGE)
        rows = np.empty(len(owners), ROW)
        rows["record"], rows["signature"] = owners + first, signatures
        while size + len(rows) >= RUN:
            cut = RUN - size
            yield np.concatenate([*held, rows[:cut]])
            held, size, rows = [], 0, rows[cut:]
        held.append(rows)
        size += len(rows)
    if size:
        yield np.concatenate(held)


def _batches(contents: Sequence[memoryview]) -> Iterator[tuple[int, Sequence[memoryview]]]:
    """Records of some `_TOGETHER` bytes, with the number of the first."""
    start = size = 0
    for number, content in enumerate(contents, 1):
        size += len(content)
        if size >= _TOGETHER or number == len(contents):
            yield start, contents[start:number]
            start, size = number, 0


def _write_bands(rows: npt.NDArray[np.void], first: int, file: BinaryIO) -> None:
    numbers = np.arange(first, first + len(rows), dtype=np.uint64)
    values = in_bands(rows["signature"])
    for band in range(BANDS):
        entries = entries_of(band_keys(values[:, band]), numbers)
        entries.sort()
        entries.tofile(file)


def entries_of(keys: Entries, numbers: Entries) -> Entries:
    """The entries of passages, from their keys and numbers."""
    return (keys & np.uint64(0xFFFFFFFF00000000)) | numbers
