"""Which rows of a pass a layer's parameters may learn from, and what follows for one call.

``RowWeights`` is what the planner states of one parameter: ranges of rows with a
weight, and the rows whose input gradient something below needs. ``layer_rows`` cuts
the rows of one call wherever a permission of any of its parameters changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from govray.errors import UsageError

INPUT = "input"
"""The name of an input's gradient beside those of parameters."""

Ranges = tuple[tuple[int, int], ...]
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class RowWeights:
    """Rows of a pass that a parameter learns from, and rows whose input gradient is needed.

    Attributes:
        weights: ``(start, stop, weight)``: rows ``[start, stop)`` contribute their
            gradient times weight > 0. Sorted and disjoint; adjacent ranges differ in weight.
        flow: ``(start, stop)``: rows for which the layer that holds the parameter must
            pass a gradient on to its input. Sorted, disjoint, not adjacent.
    """

    weights: tuple[tuple[int, int, float], ...]
    flow: Ranges

    def __post_init__(self) -> None:
        weighted = self.weights
        flow = tuple((start, stop, 1.0) for start, stop in self.flow)
        for ranges in (weighted, flow):
            for start, stop, weight in ranges:
                if not (0 <= start < stop and 0.0 < weight < math.inf):
                    raise UsageError(
                        f"rows [{start}, {stop}) with weight {weight}",
                        where="RowWeights",
                        do="Give ranges with 0 <= start < stop and a finite weight above 0",
                    )
            for (_, stop, weight), (start, _, next_weight) in pairwise(ranges):
                if start < stop or (start == stop and weight == next_weight):
                    raise UsageError(
                        f"a range ends at row {stop} and the next starts at row {start}",
                        where="RowWeights",
                        do="Sort the ranges, and merge neighbours of equal weight",
                    )

    @classmethod
    def of(cls, weights: Sequence[float], flow: Sequence[bool]) -> RowWeights:
        """From the weight of each row (0: forbidden) and whether its input gradient is needed."""
        return cls(
            tuple((start, stop, weight) for start, stop, weight in _runs(weights) if weight),
            tuple((start, stop) for start, stop, needed in _runs(flow) if needed),
        )

    def allows_all(self, rows: int) -> bool:
        """Whether every row is permitted with weight 1."""
        return self.weights == ((0, rows, 1.0),)

    @property
    def stop(self) -> int:
        """One past the last row that is named."""
        ends = [stop for _, stop, _ in self.weights[-1:]] + [stop for _, stop in self.flow[-1:]]
        return max(ends, default=0)


def _runs(values: Sequence[_Value]) -> Iterator[tuple[int, int, _Value]]:
    """Maximal ranges of equal values."""
    start = 0
    for stop in range(1, len(values) + 1):
        if stop == len(values) or values[stop] != values[start]:
            yield start, stop, values[start]
            start = stop


@dataclass(frozen=True)
class LayerRows:
    """Rows of one layer's call that are all permitted the same.

    Attributes:
        weights: Local parameter name → weight, for those that learn from these rows.
        flows: Whether the input gradient of these rows is needed.
        wanted: Names of all gradients to compute on these rows.
    """

    start: int
    stop: int
    weights: tuple[tuple[str, float], ...]
    flows: bool
    wanted: tuple[str, ...]


@lru_cache(maxsize=4096)
def layer_rows(
    named: tuple[tuple[str, tuple[tuple[int, int, float], ...]], ...], flow: Ranges
) -> tuple[LayerRows, ...]:
    """Cut the rows wherever a permission changes; rows that need nothing are in no piece."""
    ranges = [*flow, *(r[:2] for _, weights in named for r in weights)]
    cuts = sorted({edge for each in ranges for edge in each})
    pieces = []
    for start, stop in pairwise(cuts):
        learning = tuple(
            (name, weight)
            for name, weights in named
            for first, last, weight in weights
            if first <= start < last
        )
        flows = any(first <= start < last for first, last in flow)
        wanted = (*(name for name, _ in learning), *((INPUT,) if flows else ()))
        if wanted:
            pieces.append(LayerRows(start, stop, learning, flows, wanted))
    return tuple(pieces)
