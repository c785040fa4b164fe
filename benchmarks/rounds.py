"""Which methods do a step in which round, and in which order.

In every round each method does one step with the same rows. The order rotates from round to round,
so that drift of the machine affects all equally. Baselines that only give context take part in a
third of the rounds, spread evenly.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from benchmarks.batch import Batch

WARM_UP = 2
"""Steps before the first timed one. DDP lays out its buckets again after its first."""

Seconds = dict[str, list[float | None]]
"""Method → seconds of its step by round, None if not timed."""


LEDGER = "governed: its ledger"
"""The part of the governed step that writes the leaf; rank 0 does it alone."""


def baseline_rounds(pairs: int) -> int:
    """In how many of ``pairs`` rounds a baseline takes part."""
    return max(1, math.ceil(pairs / 3))


def time_rounds(
    workload: Any,
    methods: Mapping[str, Any],
    pairs: int,
    always: Collection[str],
    took: Callable[[Any, Batch], float],
    warm_up: int = WARM_UP,
) -> Seconds:
    """Let the methods do their steps round by round.

    Args:
        workload: Of this rank: its case, and the rows of each step.
        methods: By name; one is ``governed``.
        pairs: Number of rounds.
        always: Those that take part in every round.
        took: Does a method's step; seconds on the slowest rank.
        warm_up: Steps that each does before.
    """
    for step in range(warm_up):
        for method in methods.values():
            took(method, workload.batch(step))
    if workload.rank == 0:
        said = f"{workload.case}: {pairs} rounds of {', '.join(methods)}"
        print(said, file=sys.stderr, flush=True)
    seconds: Seconds = {name: [] for name in methods}
    for round_ in range(pairs):
        batch = workload.batch(warm_up + round_)
        for name, takes_part in in_round(round_, pairs, [*methods], always):
            seconds[name].append(took(methods[name], batch) if takes_part else None)
    if workload.rank == 0:
        seconds[LEDGER] = list(methods["governed"].ledger_seconds[-pairs:])
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
