"""Which methods do a step in which round, and in which order.

In every round each method does one step with the same rows. The order rotates from round to round,
so that drift of the machine affects all equally. Baselines that only give context take part in a
third of the rounds, spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from benchmarks.batch import Batch

WARM_UP = 2
"""Steps before the first timed one. DDP lays out its buckets again after its first."""

Seconds = dict[str, list[float | None]]
"""Method → seconds of its step by round, None if not timed."""


def baseline_rounds(pairs: int) -> int:
    """In how many of ``pairs`` rounds a baseline takes part."""
    return max(1, math.ceil(pairs / 3))


def time_rounds(
    methods: Sequence[str],
    pairs: int,
    always: Collection[str],
    batch_of: Callable[[int], Batch],
    took: Callable[[str, Batch], float],
    warm_up: int = WARM_UP,
) -> Seconds:
    """Let the methods do their steps round by round.

    Args:
        methods: All of them.
        pairs: Number of rounds.
        always: Those that take part in every round.
        batch_of: Step → its rows on this rank.
        took: Does a method's step; seconds on the slowest rank.
        warm_up: Steps that each has done.
    """
    seconds: Seconds = {name: [] for name in methods}
    for round_ in range(pairs):
        batch = batch_of(warm_up + round_)
        for name, takes_part in in_round(round_, pairs, methods, always):
            seconds[name].append(took(name, batch) if takes_part else None)
    return seconds


def in_round(
    round_: int, pairs: int, methods: Sequence[str], always: Collection[str]
) -> list[tuple[str, bool]]:
    """(method, whether it takes part), in the order of this round.

    Args:
        round_: From 0.
        pairs: Number of rounds.
        methods: All of them.
        always: Those that take part in every round.
    """
    few = baseline_rounds(pairs)
    all_take_part = round_ * few // pairs != (round_ + 1) * few // pairs
    first = round_ % len(methods)
    return [
        (name, all_take_part or name in always) for name in [*methods[first:], *methods[:first]]
    ]
