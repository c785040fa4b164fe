"""Start rank processes, run a function on each, and collect the results.

Each runs torch on one thread, in a new default process group. An error on a rank becomes one error
here, without a traceback, and the other ranks are ended.

Functions and arguments travel by pickle.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from govray.errors import GovrayError, RankFailed

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
    context: Any
    if device == "cuda":
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    else:
        # Forked from a server that imports once what takes each rank seconds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([function.__module__, "torch._dynamo"])
    with tempfile.TemporaryDirectory(prefix="govray-ranks-") as folder:
        store = str(Path(folder) / "store")
        processes, pipes = [], []
        try:
            for rank in range(world_size):
                here, there = context.Pipe(duplex=False)
                process = context.Process(
                    target=_rank,
                    args=(there, store, rank, world_size, device, function, args),
                    daemon=True,
                )
                process.start()
                there.close()
                processes.append(process)
                pipes.append(here)
            results = _collect(pipes)
            for process in processes:
                process.join()
            return results
        finally:
            for process in processes:
                if process.is_alive():
                    process.terminate()
                    process.join()


def _collect(pipes: list[Connection]) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        errors: list[tuple[float, int, GovrayError]] = []
        for pipe in wait([p for rank, p in enumerate(pipes) if rank not in results]):
            assert isinstance(pipe, Connection)
            rank = pipes.index(pipe)
            try:
                moment, outcome = pickle.loads(pipe.recv_bytes())  # noqa: S301 — our own child's
            except EOFError:
                outcome = RankFailed(
                    "the process ended without a result",
                    where=f"rank {rank}",
                    do="It may have run out of memory: try a smaller shape",
                )
                moment = math.inf
            if isinstance(outcome, GovrayError):
                errors.append((moment, rank, outcome))
            results[rank] = outcome
        if errors:  # the first is the cause: others may only say that a rank is lost
            raise min(errors, key=lambda each: each[:2])[2]
    return [results[rank] for rank in range(len(pipes))]


def _rank(
    pipe: Connection,
    store: str,
    rank: int,
    world_size: int,
    device: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    outcome: Any
    try:
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
        outcome = function(rank, *args)
    except GovrayError as error:
        outcome = error
    except KeyboardInterrupt:
        return
    except Exception as error:  # the parent must learn of any error
        outcome = RankFailed(
            f"{type(error).__name__}: {error}",
            where=f"rank {rank}",
            do="If the shape fits this machine, this is a bug",
        )
    # By value: a tensor in shared memory would be lost with this process.
    pipe.send_bytes(pickle.dumps((time.monotonic(), outcome)))
    pipe.close()
    if dist.is_initialized():
        dist.destroy_process_group()
