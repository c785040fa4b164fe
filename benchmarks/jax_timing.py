"""Times the ways to train with JAX side by side, step by step, in one set of processes.

`benchmarks.rounds` has the order. A step is timed from a barrier to its end on the slowest rank.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence

from benchmarks.batch import Batch
from benchmarks.cases import Shape
from benchmarks.jax_methods import METHODS, JaxMethod
from benchmarks.jax_workload import JaxWorkload
from benchmarks.rounds import Seconds, time_rounds
from govray.engine.jax.processes import Processes

EVERY_ROUND = ("fused", "governed")


def time_methods(
    rank: int,
    world_size: int,
    shape: Shape,
    cases: Sequence[str],
    methods: Sequence[str],
    pairs: int,
) -> dict[str, Seconds]:
    """Case → seconds. Run it on every rank; only rank 0 gets all of them."""
    return {
        case: _time_case(JaxWorkload(case, shape, rank, world_size), methods, pairs)
        for case in cases
    }


def _time_case(workload: JaxWorkload, methods: Sequence[str], pairs: int) -> Seconds:
    gc.collect()
    processes = Processes()

    def slowest(method: JaxMethod, batch: Batch) -> float:
        processes.gather([0])  # a barrier
        began = time.perf_counter_ns()
        method.step(batch)
        took = time.perf_counter_ns() - began
        return max(row[0] for row in processes.gather([took])) / 1e9

    made = {name: METHODS[name](workload) for name in methods}
    return time_rounds(workload, made, pairs, EVERY_ROUND, slowest)
