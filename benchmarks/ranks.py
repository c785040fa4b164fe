"""Rank processes that torch joins in a new default process group, each on one thread."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.processes import run_processes

_TIMEOUT = timedelta(minutes=10)


def run_ranks(function: Callable[..., Any], world_size: int, device: str, *args: Any) -> list[Any]:
    """Call ``function(rank, *args)`` on every rank.

    Args:
        function: At the top level of a module.
        world_size: Number of processes.
        device: ``cpu`` (gloo) or ``cuda`` (nccl, one GPU for each process).

    Returns:
        The results, by rank.

    Raises:
        GovrayError: The first rank's error.
    """
    with tempfile.TemporaryDirectory(prefix="govray-ranks-") as folder:
        return run_processes(
            function,
            world_size,
            partial(_joined, str(Path(folder) / "store"), world_size, device),
            *args,
            # CUDA does not survive a fork. Importing takes each rank seconds.
            preload=None if device == "cuda" else [function.__module__, "torch._dynamo"],
        )


@contextmanager
def _joined(store: str, world_size: int, device: str, rank: int) -> Iterator[None]:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=_TIMEOUT,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()
