"""Medians of paired ratios and differences, with a bootstrap interval.

Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", ch. 13
(percentile interval).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_RESAMPLES = 2000
_LEVEL = 0.95


@dataclass(frozen=True)
class Ratio:
    """What a method's step takes over what another's takes.

    Attributes:
        median: Of the ratios of single pairs.
        interval: 95 % percentile bootstrap interval of that median.
        pairs: How many pairs there were.
    """

    median: float
    interval: tuple[float, float]
    pairs: int


def paired_ratio(
    seconds: Sequence[float | None], reference: Sequence[float | None]
) -> Ratio | None:
    """The ratio over the rounds in which both were timed; None if there was none.

    Args:
        seconds: By round; None where it was not its turn.
        reference: The same of the denominator.
    """
    ratios = [
        one / other
        for one, other in zip(seconds, reference, strict=True)
        if one is not None and other is not None
    ]
    if not ratios:
        return None
    return Ratio(median(ratios), _interval(ratios), len(ratios))


@dataclass(frozen=True)
class Difference:
    """What one method takes more than another, in the unit of what was measured.

    Attributes:
        median: Of the differences of single pairs.
        interval: 95 % percentile bootstrap interval of that median.
        pairs: How many pairs there were.
    """

    median: float
    interval: tuple[float, float]
    pairs: int


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> Difference:
    """The difference over all rounds; at least one."""
    differences = [one - other for one, other in zip(values, reference, strict=True)]
    return Difference(median(differences), _interval(differences), len(differences))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    draw = random.Random(0)  # noqa: S311 — resampling, and the same interval for the same values
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    tail = round((1 - _LEVEL) / 2 * _RESAMPLES)
    return medians[tail], medians[-1 - tail]
