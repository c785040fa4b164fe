"""Times all methods side by side, step by step, in one set of processes.

`benchmarks.rounds` has the order. A step is timed from a barrier to its end on the slowest rank.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.batch import Batch
from benchmarks.cases import Shape
from benchmarks.methods import METHODS
from benchmarks.methods.method import Method
from benchmarks.rounds import WARM_UP, Seconds, time_rounds
from benchmarks.workload import Workload

EVERY_ROUND = ("ddp", "governed")


@dataclass(frozen=True)
class Setting:
    """What all cases of a run share.

    Attributes:
        shape: Of model and batch.
        device: ``cpu`` or ``cuda``.
        world_size: Number of processes.
        warm_up: Steps of each method before the first round.
    """

    shape: Shape
    device: str
    world_size: int
    warm_up: int = WARM_UP

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


def time_methods(
    rank: int, setting: Setting, cases: Sequence[str], methods: Sequence[str], pairs: int
) -> dict[str, Seconds]:
    """Case → seconds. Run it on every rank; only rank 0 gets all of them."""
    return {case: _time_case(setting, case, rank, methods, pairs) for case in cases}


def _time_case(
    setting: Setting, case: str, rank: int, methods: Sequence[str], pairs: int
) -> Seconds:
    gc.collect()
    workload = setting.workload(case, rank)
    made = {name: METHODS[name](workload) for name in methods if METHODS[name].covers(workload)}
    return time_rounds(workload, made, pairs, EVERY_ROUND, _slowest, setting.warm_up)


def _slowest(method: Method, batch: Batch) -> float:
    """Seconds of one step on the rank that took longest."""
    device = method.workload.device
    dist.barrier()
    _finish(device)
    began = time.perf_counter()
    method.step(batch)
    _finish(device)
    took = torch.tensor(time.perf_counter() - began, dtype=torch.float64, device=device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def _finish(device: torch.device) -> None:
    """Wait for the device's queue, so that the clock is meaningful."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
