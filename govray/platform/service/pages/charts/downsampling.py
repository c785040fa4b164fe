"""A curve of any length as few points: of every bucket the lowest and the highest stay.

One pass over points that nobody has counted, in memory for as many as are kept. Buckets hold one
point each, then two, four and so on: when there are too many, neighbours become one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Point: TypeAlias = tuple[int, float]
"""A step, and the number that was measured there."""


def downsample(points: Iterable[Point], most: int) -> list[Point]:
    """At most ``most`` of the points: the first, the last, and the extremes of every stretch.

    Args:
        points: By ascending step, values finite. Up to ``most`` of them stay as they are.
        most: At least 4.
    """
    if most < 4:
        raise ValueError("a curve needs 4 points: its ends and its extremes")
    ends: tuple[Point, ...] = ()
    buckets: list[tuple[Point, Point]] = []
    width, inside = 1, 1  # points of a full bucket, and of the newest
    for point in points:
        ends = (ends[0], point) if ends else (point,)
        if buckets and inside < width:
            buckets[-1] = _both(buckets[-1], (point, point))
            inside += 1
            continue
        buckets.append((point, point))
        inside = 1
        while (len(buckets) if width == 1 else 2 * len(buckets) + 2) > most:
            if len(buckets) % 2 == 0:
                inside += width
            buckets = [
                _both(buckets[at], buckets[at + 1]) if at + 1 < len(buckets) else buckets[at]
                for at in range(0, len(buckets), 2)
            ]
            width *= 2
    return sorted({*ends, *(point for bucket in buckets for point in bucket)})


def _both(one: tuple[Point, Point], other: tuple[Point, Point]) -> tuple[Point, Point]:
    """The lowest and the highest of two buckets, the earlier one of equals."""
    low = other[0] if other[0][1] < one[0][1] else one[0]
    high = other[1] if other[1][1] > one[1][1] else one[1]
    return low, high
