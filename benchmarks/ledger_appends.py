"""What a write-ahead append costs late in a run, against early in one.

Two ledgers take a leaf by turns, each through the product's `WriteAhead`. One is at step 10 and is
begun anew every ten leaves; the other resumed at the late step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from govray.governance.record.ledger import CorpusUse, Leaf
from govray.train.run_folder.ledger_wal import FILE, WriteAhead

EARLY = 10
_DIGEST = "sha256:" + "5a" * 32


def timed_appends(scratch: Path, late: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each append from step `EARLY` on, and from step ``late`` on, by round."""
    early_appends = _appends(scratch / "early", EARLY, EARLY)
    late_appends = _appends(scratch / "late", late, rounds + 1)
    next(early_appends), next(late_appends)  # the first writes of a process are slow
    pairs = [(next(early_appends), next(late_appends)) for _ in range(rounds)]
    return [early for early, _ in pairs], [late for _, late in pairs]


def _appends(folder: Path, begin: int, appends: int) -> Iterator[float]:
    """Seconds of single appends; every so many, the ledger is back at step ``begin``."""
    for number in count():
        place = folder / str(number)
        place.mkdir(parents=True)
        ahead = WriteAhead(place / FILE, tuple(map(_leaf, range(begin))))
        for step in range(begin, begin + appends):
            leaf = _leaf(step)
            began = time.perf_counter()
            ahead.append(leaf)
            yield time.perf_counter() - began


def _leaf(step: int) -> Leaf:
    return Leaf(
        step=step,
        world_size=4,
        policy=_DIGEST,
        plan=_DIGEST,
        streams={_DIGEST: (step * 8, step * 8 + 8)},
        corpora={"a": CorpusUse(rows=8, targets=4096)},
    )
