"""How long trials run before they are compared: rungs, brackets, and the trials of each bracket.

A bracket is a series of rungs, in steps. At each rung one trial in ``divisor`` goes on to the next.
A bracket with few rungs starts high, which favours trials that start slowly; so a search may have
several brackets. The arithmetic is integer or rational: a logarithm in floats can be off by one.

The algorithm is that of Li et al., "A system for massively parallel hyperparameter tuning" (2020).
The formulas for rungs and brackets are those of Determined AI's adaptive ASHA.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Mode = Literal["aggressive", "standard", "conservative"]


@dataclass(frozen=True)
class Bracket:
    """One bracket. ``rungs``: steps at which its trials are compared, rising. They end at the
    last."""

    rungs: tuple[int, ...]
    trials: int


def adaptive(
    *, max_trials: int, max_time: int, divisor: int, max_rungs: int, mode: Mode
) -> tuple[Bracket, ...]:
    """The brackets of a search, the one with most rungs first."""
    lengths = bracket_lengths(longest(max_rungs, divisor, max_time, max_trials), mode)
    counts = trials_per_bracket(max_trials, divisor, lengths)
    return tuple(
        Bracket(rungs(length, divisor, max_time), count)
        for length, count in zip(lengths, counts, strict=True)
    )


def longest(max_rungs: int, divisor: int, max_time: int, max_trials: int) -> int:
    """How many rungs the longest bracket has: no more than time and trials fill."""
    return min(max_rungs, floor_log(divisor, max_time) + 1, floor_log(divisor, max_trials) + 1)


def bracket_lengths(most: int, mode: Mode) -> tuple[int, ...]:
    """How many rungs each bracket has, the longest first."""
    least = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}[mode]
    return tuple(range(most, least - 1, -1))


def trials_per_bracket(max_trials: int, divisor: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Share out trials by weight divisor^(r - 1) / r. The first bracket takes the remainder."""
    weights = [Fraction(divisor ** (length - 1), length) for length in lengths]
    counts = [int(max_trials * weight / sum(weights)) for weight in weights]
    counts[0] += max_trials - sum(counts)
    return tuple(counts)


def rungs(count: int, divisor: int, max_time: int) -> tuple[int, ...]:
    """The steps of ``count`` rungs, rising to ``max_time``."""
    return tuple(max(max_time // divisor ** (count - 1 - i), 1) for i in range(count))


def floor_log(base: int, n: int) -> int:
    """The largest k with base^k <= n; ``base`` is 2 or more, ``n`` 1 or more."""
    k = 0
    while base ** (k + 1) <= n:
        k += 1
    return k


def places(count: int, divisor: int) -> int:
    """How many of ``count`` trials at a rung go on."""
    return max(count // divisor, 1)
