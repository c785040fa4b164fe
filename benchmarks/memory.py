"""Peak live tensor bytes of a training step, parameters and optimizer included.

On a GPU the caching allocator counts them. On the CPU a profile has every allocation and release of
tensor storage. It begins before the parameters are made. So it includes the tensors that autograd
saves, and the buckets that DDP allocates in C++. The peak is the highest running sum of these
events from the start of the measured step.

Not counted: scratch space that libraries take from the system instead of torch's allocator, and
Python objects.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.methods import METHODS
from benchmarks.rounds import WARM_UP
from benchmarks.timing import Setting

_MARK = "govray: the measured step"


def measure_memory(
    rank: int, setting: Setting, cases: Sequence[str], method: str
) -> dict[str, int | None]:
    """Case → peak bytes of one method on the rank with the most. Run it on every rank.

    None if the method can't do what the case asks.
    """
    return {case: _measure_case(setting, case, rank, method) for case in cases}


def _measure_case(setting: Setting, case: str, rank: int, name: str) -> int | None:
    workload = setting.workload(case, rank)
    if not METHODS[name].covers(workload):
        return None

    def prepare() -> Callable[[], None]:
        batches = [workload.batch(step) for step in range(WARM_UP + 1)]
        method = METHODS[name](workload)
        for batch in batches[:-1]:
            method.step(batch)
        return lambda: method.step(batches[-1])

    peak = torch.tensor(peak_bytes(prepare, workload.device), device=workload.device)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    return int(peak)


def peak_bytes(prepare: Callable[[], Callable[[], object]], device: torch.device) -> int:
    """Peak of the tensor bytes that are live while a step runs.

    Args:
        prepare: Makes everything that the step needs and warms it up; returns the
            step. Tensors that were made before it is called are not counted.
        device: Where the tensors live.
    """
    gc.collect()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        step = prepare()
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise every profile prints a line
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step = prepare()
        with record_function(_MARK):
            step()
    del step
    return _highest(_trace(profiled))


def _trace(profiled: profile) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="govray-trace-") as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
        return events


def _highest(events: Sequence[Mapping[str, Any]]) -> int:
    """Peak of the running sum of allocations and releases, from the mark on."""
    start = next(event["ts"] for event in events if event.get("name") == _MARK)
    changes = sorted(
        (event["ts"], event["args"]["Ev Idx"], event["args"]["Bytes"])
        for event in events
        if event.get("name") == "[memory]"
    )
    live = sum(change for when, _, change in changes if when < start)
    peak = live
    for when, _, change in changes:
        if when >= start:
            live += change
            peak = max(peak, live)
    return peak
