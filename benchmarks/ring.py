"""The cost of a collective on a ring of P ranks, from two measured constants.

An all-reduce of b bytes sends, from every rank, 2·(P − 1) messages of b / P bytes:

    t  =  2·(P − 1)·α  +  2·(P − 1)/P · b · β

An all-gather of r bytes a rank sends P − 1 messages of r bytes:

    t  =  (P − 1)·(α + r·β)

α is the cost of a message, β that of a byte. The model has no congestion, no
topology and no tree algorithms, which real backends prefer at many ranks.

Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective
Communication Operations in MPICH", §4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Measured costs.

    Attributes:
        per_message: α, seconds.
        per_byte: β, seconds.
    """

    per_message: float
    per_byte: float

    def all_reduce(self, size: int, world: int) -> float:
        """Seconds of one all-reduce of ``size`` bytes over ``world`` ranks."""
        return 2 * (world - 1) * self.per_message + all_reduce_bytes(size, world) * self.per_byte

    def all_gather(self, size: int, world: int) -> float:
        """Seconds of one all-gather of ``size`` bytes from each of ``world`` ranks."""
        return (world - 1) * (self.per_message + size * self.per_byte)


@dataclass(frozen=True)
class Sample:
    """A measured all-reduce: bytes, ranks, seconds."""

    size: int
    world: int
    seconds: float


def all_reduce_bytes(size: int, world: int) -> float:
    """Bytes that each rank sends in an all-reduce of ``size`` bytes."""
    return 2 * (world - 1) / world * size


def fit(samples: Sequence[Sample]) -> Link:
    """The link whose all-reduce times differ least from the measured ones.

    Least squares of the relative differences, so that small messages count as much as large ones. A
    negative cost is set to 0: these times don't show it.
    """
    # Normal equations of  a·α + b·β = 1,  with a, b relative to the measured time.
    rows = [
        (2 * (s.world - 1) / s.seconds, all_reduce_bytes(s.size, s.world) / s.seconds)
        for s in samples
    ]
    a, b = (sum(column) for column in zip(*rows, strict=True))
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    per_message, per_byte = a * bb - b * ab, b * aa - a * ab
    if per_message <= 0:
        return Link(0.0, b / bb)
    if per_byte <= 0:
        return Link(a / aa, 0.0)
    determinant = aa * bb - ab * ab
    return Link(per_message / determinant, per_byte / determinant)
