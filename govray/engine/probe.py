"""Which rows a corpus is measured by, and how ranks share the scoring of them.

A probe is a list of rows of one corpus: first rows that were trained on, then rows of
its reserve. Every rank knows the list and each row's record, and holds the tensors of
its own contiguous slice of it (`own_rows`), which may be empty.

Choosing is pure: `pick` takes rows in an order drawn from a key, each record once
before any record twice, since rows of one record say much the same.

What it does not do: read rows, or score them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from govray.governance.plan import rank_slice


@dataclass(frozen=True)
class Probe:
    """Rows of one corpus, and this rank's part of them.

    Attributes:
        corpus: Whose.
        adapter: The adapter that the corpus is routed to, if it is.
        probe_units: Record of each row trained on.
        reserve_units: Record of each reserve row.
        tensors: ``tokens`` and ``targets`` of the rows that ``own_rows`` gives this rank,
            on the model's device; of these rows alone, also where there are none. Rows of
            all probes and ranks are equally long.
        error: Why this rank could not read its part; no tensors then.
    """

    corpus: str
    adapter: str | None
    probe_units: tuple[Hashable, ...]
    reserve_units: tuple[Hashable, ...]
    tensors: Mapping[str, Tensor] | None
    error: str | None = None

    def __len__(self) -> int:
        return len(self.probe_units) + len(self.reserve_units)


def own_rows(rows: int, rank: int, world_size: int) -> range:
    """This rank's part of a probe of so many rows."""
    return rank_slice(range(rows), rank, world_size)


def most_rows(rows: int, world_size: int) -> int:
    """The largest part that any rank has."""
    return -(-rows // world_size)


def pick(units: Sequence[Hashable], count: int, *key: object) -> list[int]:
    """Choose rows, one of each record before a second of any.

    Args:
        units: Record of each row that may be chosen.
        count: How many to choose; all, if there are no more.
        key: What the order is drawn from, such as seed and corpus.

    Returns:
        Indexes into ``units``, ascending.
    """

    def drawn(row: int) -> bytes:
        text = "\0".join(map(str, ("govray probe", *key, units[row], row)))
        return hashlib.sha256(text.encode()).digest()

    seen: Counter[Hashable] = Counter()
    turns = []
    for row in sorted(range(len(units)), key=drawn):
        turns.append((seen[units[row]], row))
        seen[units[row]] += 1
    turns.sort(key=lambda turn: turn[0])  # stable: by turn, then as drawn
    return sorted(row for _, row in turns[:count])
