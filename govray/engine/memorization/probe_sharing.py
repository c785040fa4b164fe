"""Which rows a corpus is measured by, and how ranks share the scoring of them.

A probe is a list of rows of one corpus: first rows that were trained on, then rows of
its reserve. Every rank knows the list and each row's record, and holds the tensors of
its own contiguous slice of it (`own_probe_rows`), which may be empty.

Choosing is pure: `pick` takes rows at random, from a key. Every row has the same chance, whatever
its record's length. What was read so far is a random sample of rows. Favouring short records on one
side would make equal samples differ.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from torch import Tensor

from govray.governance.record.batch_plan import rank_slice


@dataclass(frozen=True)
class Probe:
    """Rows of one corpus, and this rank's part of them.

    Attributes:
        adapter: The adapter that the corpus is routed to, if it is.
        probe_units: Record of each row trained on.
        reserve_units: Record of each reserve row.
        tensors: ``tokens`` and ``targets`` of the rows that ``own_probe_rows`` gives this rank,
            on the model's device. They are of these rows alone, be there any or not. Rows of
            all probes and ranks are equally long.
        error: Why this rank could not read its part; no tensors then.
        tested: Whether the rows are one of each record, so that they can be evidence.
    """

    corpus: str
    adapter: str | None
    probe_units: tuple[Hashable, ...]
    reserve_units: tuple[Hashable, ...]
    tensors: Mapping[str, Tensor] | None
    error: str | None = None
    tested: bool = True

    def __len__(self) -> int:
        return len(self.probe_units) + len(self.reserve_units)


def own_probe_rows(rows: int, rank: int, world_size: int) -> range:
    """This rank's part of a probe of so many rows."""
    return rank_slice(range(rows), rank, world_size)


def most_rows(rows: int, world_size: int) -> int:
    """The largest part that any rank has."""
    return -(-rows // world_size)


def pick(rows: int, count: int, *key: object) -> list[int]:
    """Choose ``count`` of ``rows`` rows, or all if there are no more.

    Args:
        key: What they are drawn from, such as seed, corpus and step.

    Returns:
        Numbers of rows, ascending.
    """
    text = "\0".join(map(str, ("govray probe", *key)))
    draw = random.Random(hashlib.sha256(text.encode()).digest())  # noqa: S311 — no secret
    return sorted(draw.sample(range(rows), min(count, rows)))
