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
    return Paired(median(ratios), _interval(ratios), len(ratios))


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> Paired:
    """The difference over all rounds, in the values' unit; at least one round."""
    differences = [one - other for one, other in zip(values, reference, strict=True)]
    return Paired(median(differences), _interval(differences), len(differences))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    draw = random.Random(0)  # noqa: S311 — resampling, and the same interval for the same values
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    tail = round((1 - _LEVEL) / 2 * _RESAMPLES)
    return medians[tail], medians[-1 - tail]
