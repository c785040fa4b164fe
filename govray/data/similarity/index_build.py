"""Building an index, and keeping it: runs of each part, then one merge of all.

`BuildParts` makes the runs: `in_turn` one part after the other here, ``parallel_index.py`` several
at a time. The index has the same bytes either way. A part gives three files, for the merge alone:

* ``.entries``: of each record what its Merkle leaf is made of, 32 bytes.
* ``.rows``: its passages (``ROW``), in order. Records are counted within the part.
* ``.bands``: runs of at most `RUN` passages. Each has, band by band, its entries in ascending
  order. Passages are counted within the part.

An index is kept in a hidden folder beside its corpus, which can always be deleted. It appears
whole (``storage/staged_folder.py``). What is not as it was written is replaced.

Memory: of each process the part's content, 100 MB for the passages of a run, and 40 MB for their
shingles. The merge has 64 MiB, and 1.8 bytes for each passage of the directory. Runs lie beside the
index until it is whole. So for a while the disk has a third more than the index needs.

Source: Knuth, The Art of Computer Programming, volume 3, section 5.4.1 (merging runs).
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from govray.data.corpus import part_files, read_part
from govray.data.similarity.minhash import (
    BANDS,
    PASSAGE,
    band_keys,
    in_bands,
    passage_signatures,
)
from govray.data.similarity.passage_index import (
    ENTRY,
    MOST,
    ROW,
    CorpusPassages,
    Entries,
    PassageIndex,
    open_index,
    write_index,
)
from govray.data.similarity.shingles import shingles
from govray.errors import Damaged, UsageError
from govray.governance.formats import merkle
from govray.governance.policy import record_commitment
from govray.storage.place import Place
from govray.storage.staged_folder import staged_folder

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
        owners, signatures = passage_signatures(list(map(shingles, some)), PASSAGE)
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
    return (keys & np.uint64(0xFFFFFFFF00000000)) | numbers


AT_ONCE = 1 << 22
"""Entries in memory: 32 MiB, and as much again while they are sorted."""

BuildParts = Callable[[Sequence[Place], bytes, Path], Sequence[PartRuns]]
"""Gets a corpus's parts, its secret and a folder. Writes there the runs of each, and says which."""


def in_turn(parts: Sequence[Place], secret: bytes, folder: Path) -> Sequence[PartRuns]:
    """The runs of each part, one after the other. Raises as `write_runs`."""
    return [write_runs(part, secret, folder / stem(k)) for k, part in enumerate(parts)]


def stem(part: int) -> str:
    """The name of a part's runs."""
    return f"{part:06}"


def build_index(
    folder: Path, corpus: Place, root: str, secret: bytes, build_parts: BuildParts = in_turn
) -> None:
    """Write the index of a corpus into an empty folder.
    ``root``: the Merkle root that its records have to have, ``sha256:<hex>``."""
    runs = folder / "runs"
    runs.mkdir(mode=0o700)
    parts = build_parts(part_files(corpus), secret, runs)
    if _root(parts) != root:
        raise UsageError(
            "these are not the records that the credential states",
            where=str(corpus),
            do="Restore the corpus's files, or name the corpora that the model's run read",
        )
    records = [0, *accumulate(each.records for each in parts)]
    passages = [0, *accumulate(each.passages for each in parts)]
    if max(records[-1], passages[-1]) > MOST:
        raise UsageError(
            f"the corpus has {passages[-1]:,} passages, an index holds {MOST:,}",
            where=str(corpus),
            do="Build it as several corpora",
        )
    write_index(
        folder,
        root,
        [each.records for each in parts],
        _rows(parts, records),
        (_band(parts, passages, band) for band in range(BANDS)),
    )
    shutil.rmtree(runs)


def _root(parts: Sequence[PartRuns]) -> str:
    found = merkle.BulkRoot()
    for part in parts:
        found.add_hashes(part.entries())
    return "sha256:" + found.root().hex()


def _rows(parts: Sequence[PartRuns], records: Sequence[int]) -> Iterator[npt.NDArray[np.void]]:
    for part, first in zip(parts, records, strict=False):
        yield from part.rows(first)
        part.stem.with_suffix(".rows").unlink()


def _band(parts: Sequence[PartRuns], passages: Sequence[int], band: int) -> Iterator[Entries]:
    runs = [
        run
        for part, first in zip(parts, passages, strict=False)
        for run in part.sorted_runs(band, first)
    ]
    return merged(runs)


def merged(runs: Sequence[SortedRun], at_once: int = AT_ONCE) -> Iterator[Entries]:
    """All entries of some runs in ascending order, in pieces.

    Args:
        runs: Each ascends; no two have an entry in common.
        at_once: Entries in memory at most, or one of each run if that is more.
    """
    each = max(1, at_once // max(1, len(runs)))
    held = [np.zeros(0, np.uint64) for _ in runs]
    read = [0] * len(runs)
    while True:
        for i, run in enumerate(runs):
            if len(held[i]) < each and read[i] < run.count:
                more = run.read(read[i], each - len(held[i]))
                read[i] += len(more)
                held[i] = np.concatenate([held[i], more])
        # What is not read yet is larger than what was read last of its run.
        ends = [held[i][-1] for i, run in enumerate(runs) if read[i] < run.count]
        if not ends:
            break
        cuts = [int(np.searchsorted(some, min(ends), "right")) for some in held]
        yield _sorted([some[:cut] for some, cut in zip(held, cuts, strict=True)])
        held = [some[cut:] for some, cut in zip(held, cuts, strict=True)]
    if any(map(len, held)):
        yield _sorted(held)


def _sorted(some: Sequence[Entries]) -> Entries:
    found = np.concatenate(some)
    found.sort()
    return found


FOLDER = ".govray-similarity"


def kept_folder(corpus: Place) -> Path | None:
    """Where a corpus's index is kept; None below a bucket, which is read and never written."""
    return corpus.parent / FOLDER / corpus.name if isinstance(corpus, Path) else None


def kept_index(corpus: Place, root: str) -> PassageIndex | None:
    """The index that is kept of the records with this Merkle root, if any."""
    kept = kept_folder(corpus)
    with suppress(OSError, Damaged):
        return open_index(kept, root) if kept else None
    return None


def whole_index(corpus: Place, root: str) -> PassageIndex | None:
    """As `kept_index`, with every block checked."""
    found = kept_index(corpus, root)
    with suppress(Damaged):
        if found is not None:
            found.check()
            return found
    return None


def index_of(corpus: Place, root: str, secret: bytes) -> PassageIndex:
    """The index of a corpus whose records have this Merkle root: as kept, or built and kept.
    ``root``: ``sha256:<hex>``, as its credential says."""
    return kept_index(corpus, root) or built_index(corpus, root, secret)


def built_index(
    corpus: Place, root: str, secret: bytes, build_parts: BuildParts = in_turn
) -> PassageIndex:
    """The index, built anew. It is kept, if that can be written; else it goes with the process.
    Raises as `index_of`; ``OSError`` if nothing at all can be written."""
    kept = kept_folder(corpus)
    if kept is not None:
        with suppress(OSError):
            with staged_folder(kept, replace=True) as folder:
                build_index(folder, corpus, root, secret, build_parts)
            return open_index(kept, root)
    with tempfile.TemporaryDirectory(prefix="govray-similarity-") as name:
        build_index(Path(name), corpus, root, secret, build_parts)
        return open_index(Path(name), root)  # what is mapped stays until it is let go


def passages_of(corpus: Place, root: str, secret: bytes) -> CorpusPassages:
    """All passages of a corpus, in memory. Raises as `index_of`."""
    try:
        return index_of(corpus, root, secret).passages()
    except Damaged:
        return built_index(corpus, root, secret).passages()
