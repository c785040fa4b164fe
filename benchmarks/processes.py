"""Start rank processes, run a function on each, and collect the results.

`benchmarks.ranks` joins them by torch, `benchmarks.jax_ranks` by JAX. An error on a rank becomes
one error here, without a traceback, and the other ranks are ended.

Functions and arguments travel by pickle.
"""

from __future__ import annotations

import math
import multiprocessing
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from typing import Any

from govray.errors import GovrayError, RankFailed

_PATIENCE = 5.0
"""Seconds for a process to end by itself."""

Joined = Callable[[int], AbstractContextManager[None]]
"""What a rank is inside while it works, given its number: it sets the framework up, and ends it."""


def run_processes(
    function: Callable[..., Any],
    world_size: int,
    joined: Joined,
    *args: Any,
    preload: Sequence[str] | None,
) -> list[Any]:
    """Call ``function(rank, *args)`` in a process for every rank.

    Args:
        function: At the top level of a module.
        world_size: Number of processes.
        joined: Can be pickled.
        preload: Modules that a server imports once, from which the processes are forked. None
            starts each anew, for what does not survive a fork.

    Returns:
        The results, by rank.

    Raises:
        GovrayError: The first rank's error.
    """
    context: Any
    if preload is None:
        context = multiprocessing.get_context("spawn")
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*preload])
    processes, pipes = [], []
    try:
        for rank in range(world_size):
            here, there = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(there, rank, joined, function, args), daemon=True
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
                process.join(_PATIENCE)
                process.kill()  # JAX notes a SIGTERM, and goes on
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
    rank: int,
    joined: Joined,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    try:
        with joined(rank):
            outcome = _outcome(function, rank, args)
            # By value: a tensor in shared memory would be lost with this process.
            pipe.send_bytes(pickle.dumps((time.monotonic(), outcome)))
            pipe.close()
            if isinstance(outcome, GovrayError):
                raise outcome  # so that what it is joined by does not wait for the others
    except KeyboardInterrupt:
        return
    except Exception as error:
        if not pipe.closed:  # not joined: the parent must learn of that too
            pipe.send_bytes(pickle.dumps((time.monotonic(), _failed(error, rank))))
            pipe.close()


def _outcome(function: Callable[..., Any], rank: int, args: tuple[Any, ...]) -> Any:
    """What the function returns or raises."""
    try:
        return function(rank, *args)
    except GovrayError as error:
        return error
    except Exception as error:
        return _failed(error, rank)


def _failed(error: Exception, rank: int) -> RankFailed:
    return RankFailed(
        f"{type(error).__name__}: {error}",
        where=f"rank {rank}",
        do="If the shape fits this machine, this is a bug",
    )
