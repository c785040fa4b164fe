"""Building an index: runs of each part, then one merge of all.

`BuildParts` makes the runs: `in_turn` one part after the other here, ``parallel_index.py`` several
at a time. The index has the same bytes either way.

Memory: that of `write_runs` in each process. The merge has 64 MiB, and 1.2 bytes
for each passage of the directory. Runs lie beside the index until it is whole. So for a while the
disk has a third more than the index needs.

Source: Knuth, The Art of Computer Programming, volume 3, section 5.4.1 (merging runs).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from govray.data.corpus import part_files
from govray.data.similarity.minhash import BANDS
from govray.data.similarity.passage_index import MOST, Entries, write_index
from govray.data.similarity.passage_run import PartRuns, SortedRun, write_runs
from govray.errors import UsageError
from govray.governance.formats import merkle
from govray.storage.place import Place

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
