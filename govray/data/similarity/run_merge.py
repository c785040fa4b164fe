"""Sorted runs on disk merged into one, in memory that does not grow with them.

Source: Knuth, The Art of Computer Programming, volume 3, section 5.4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from govray.data.similarity.passage_index import Entries
from govray.data.similarity.passage_run import SortedRun

AT_ONCE = 1 << 22
"""Entries in memory: 32 MiB, and as much again while they are sorted."""


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
