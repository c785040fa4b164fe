"""Medians of paired ratios and differences with a bootstrap interval, and shares with an exact one.

Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", ch. 13
(percentile interval).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

Value = TypeVar("Value")

_RESAMPLES = 2000
_LEVEL = 0.95


@dataclass(frozen=True)
class Paired:
    """One method against another, measured in pairs: a ratio, or a difference.

    Attributes:
        median: Of the single pairs.
        interval: 95 % percentile bootstrap interval of that median.
        pairs: How many pairs there were.
    """

    median: float
    interval: tuple[float, float]
    pairs: int


def paired_ratio(
    seconds: Sequence[float | None], reference: Sequence[float | None]
) -> Paired | None:
    """The ratio over the rounds in which both were timed; None without such rounds.

    Args:
        seconds: By round; None if not timed.
        reference: The same for the denominator.
    """
    ratios = [
        one / other
        for one, other in zip(seconds, reference, strict=True)
        if one is not None and other is not None
    ]
    if not ratios:
        return None
    return Paired(median(ratios), bootstrap(ratios, median), len(ratios))


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> Paired:
    """The difference over all rounds, in the values' unit; at least one round."""
    differences = [one - other for one, other in zip(values, reference, strict=True)]
    return Paired(median(differences), bootstrap(differences, median), len(differences))


def bootstrap(
    values: Sequence[Value], figure: Callable[[Sequence[Value]], float]
) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a figure of independent values."""
    draw = random.Random(0)  # noqa: S311 — resampling, and the same interval for the same values
    found = sorted(figure(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    tail = round((1 - _LEVEL) / 2 * _RESAMPLES)
    return found[tail], found[-1 - tail]


def spread(values: Iterable[float]) -> list[float]:
    """Median, smallest, largest."""
    found = sorted(values)
    return [median(found), found[0], found[-1]]


def exact(hits: int, trials: int, *, level: float = _LEVEL) -> tuple[float, float]:
    """The two-sided interval of a share, from so many hits. Source: Clopper and Pearson 1934."""
    tail = (1 - level) / 2
    low = _crossing(lambda share: _at_least(hits, trials, share) > tail)
    high = _crossing(lambda share: _at_least(hits + 1, trials, share) > 1 - tail)
    return (low if hits else 0.0), (high if hits < trials else 1.0)


def _at_least(hits: int, trials: int, share: float) -> float:
    """The probability of so many hits or more."""
    logs = (math.log(share), math.log1p(-share))
    return math.fsum(
        math.exp(
            math.lgamma(trials + 1)
            - math.lgamma(k + 1)
            - math.lgamma(trials - k + 1)
            + k * logs[0]
            + (trials - k) * logs[1]
        )
        for k in range(hits, trials + 1)
    )


def _crossing(beyond: Callable[[float], bool]) -> float:
    """Where a condition begins to hold, between 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return low
