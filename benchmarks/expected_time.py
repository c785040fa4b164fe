"""How long a search needs to a target, if some searches end before they reach it.

A search that ended without the target is censored: it would have needed longer, how much is
unknown. Leaving it out would favour a method that gives up early, and counting its end as a success
would too. The expected time is what all searches spent, over the number that reached the target.
So it is the mean time if one restarts independently until the target is reached.

Source: Hansen et al. 2021, "COCO: a platform for comparing continuous optimizers in a black-box
setting" (expected running time, from Price 1997). For exponential times it is the
maximum-likelihood estimate from censored data.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 2000
_LEVEL = 0.95


@dataclass(frozen=True)
class Spent:
    """One search.

    Attributes:
        time: Until it reached the target, or until its end; in any unit.
        reached: Whether it reached the target.
    """

    time: float
    reached: bool


@dataclass(frozen=True)
class Speedup:
    """One method against another.

    Attributes:
        ratio: The other's expected time over ours.
        interval: 95 % percentile bootstrap interval of the ratio, over pairs.
    """

    ratio: float
    interval: tuple[float, float]


def expected(searches: Sequence[Spent]) -> float:
    """The expected time to the target; infinite if no search reached it."""
    reached = sum(each.reached for each in searches)
    return sum(each.time for each in searches) / reached if reached else math.inf


def speedup(ours: Sequence[Spent], theirs: Sequence[Spent]) -> Speedup:
    """How many times faster ``ours`` is expected to be. Searches of one place are a pair.

    A method that never reached the target is infinitely slow; if neither did, the ratio is NaN.
    """
    pairs = list(zip(ours, theirs, strict=True))
    draw = random.Random(0)  # noqa: S311 — resampling, and the same interval for the same values
    ratios = sorted(_ratio(draw.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
    tail = round((1 - _LEVEL) / 2 * _RESAMPLES)
    return Speedup(_ratio(pairs), (ratios[tail], ratios[-1 - tail]))


def _ratio(pairs: Sequence[tuple[Spent, Spent]]) -> float:
    ours, theirs = expected([one for one, _ in pairs]), expected([other for _, other in pairs])
    return math.nan if math.isinf(ours) and math.isinf(theirs) else theirs / ours
