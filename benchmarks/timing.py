"""Times all methods side by side, step by step, in one set of processes.

In every round each method does one step with the same rows. The order rotates from round to round,
so that drift of the machine affects all equally. A step is timed from a barrier to its end on the
slowest rank. Baselines that only give context take part in a third of the rounds, spread evenly.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.methods import METHODS
from benchmarks.methods.method import Method
from benchmarks.workload import Batch, Shape, Workload

WARM_UP = 2
"""Steps before the first timed one. DDP lays out its buckets again after its first."""

EVERY_ROUND = ("ddp", "governed")

LEDGER = "governed: its ledger"
"""The part of the governed step that writes the leaf; rank 0 does it alone."""

Seconds = dict[str, list[float | None]]
"""Method → seconds of its step by round, None if not timed."""


@dataclass(frozen=True)
class Setting:
    """What all cases of a run share.

    Attributes:
        shape: Of model and batch.
        device: ``cpu`` or ``cuda``.
        world_size: Number of processes.
    """

    shape: Shape
    device: str
    world_size: int

    def workload(self, case: str, rank: int) -> Workload:
        """A case on a rank of this run; a GPU computes in bfloat16."""
        cuda = self.device == "cuda"
        return Workload(
            case,
            self.shape,
            rank,
            self.world_size,
            device=torch.device("cuda", rank) if cuda else torch.device("cpu"),
            autocast=cuda,
        )


def baseline_rounds(pairs: int) -> int:
    """In how many of ``pairs`` rounds a baseline takes part."""
    return max(1, math.ceil(pairs / 3))


def time_methods(
    rank: int, setting: Setting, cases: Sequence[str], methods: Sequence[str], pairs: int
) -> dict[str, Seconds]:
    """Case → seconds. Run it on every rank; only rank 0 gets all of them."""
    return {case: _time_case(setting.workload(case, rank), methods, pairs) for case in cases}


def _time_case(workload: Workload, methods: Sequence[str], pairs: int) -> Seconds:
    gc.collect()
    made = {name: METHODS[name](workload) for name in methods if METHODS[name].covers(workload)}
    for step in range(WARM_UP):
        for method in made.values():
            method.step(workload.batch(step))
    if workload.rank == 0:
        print(f"{workload.case}: {pairs} rounds of {', '.join(made)}", file=sys.stderr, flush=True)
    few = baseline_rounds(pairs)
    seconds: Seconds = {name: [] for name in made}
    for round_ in range(pairs):
        batch = workload.batch(WARM_UP + round_)
        all_take_part = round_ * few // pairs != (round_ + 1) * few // pairs
        first = round_ % len(made)
        names = [*made][first:] + [*made][:first]
        for name in names:
            if all_take_part or name in EVERY_ROUND:
                seconds[name].append(_slowest(workload, made[name], batch))
            else:
                seconds[name].append(None)
    if workload.rank == 0:
        seconds[LEDGER] = list(made["governed"].ledger_seconds[-pairs:])
    return seconds


def _slowest(workload: Workload, method: Method, batch: Batch) -> float:
    """Seconds of one step on the rank that took longest."""
    dist.barrier()
    _finish(workload.device)
    began = time.perf_counter()
    method.step(batch)
    _finish(workload.device)
    took = torch.tensor(time.perf_counter() - began, dtype=torch.float64, device=workload.device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def _finish(device: torch.device) -> None:
    """Wait for the device's queue, so that the clock is meaningful."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
