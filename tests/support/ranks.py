"""Real rank processes for tests: started once, then handed one function after another.

``RankPool(2).run(function, *args)`` calls ``function(*args)`` in every rank
process, inside a fresh default process group on gloo, and returns the results
by rank. A fresh group for each call means that a failed call cannot leave half
a collective behind for the next one.

``outcomes`` returns exceptions as values, for tests of failures. A rank that
hangs or dies never hangs the test: after ``timeout`` seconds the stacks of all
ranks go to stderr, the processes are killed, and `Hung` is raised; the next
call starts new ones. So it is after calls that left many process groups behind:
DDP's comm hooks and FSDP2 keep theirs, and their threads would slow all later tests.

Functions and arguments travel by pickle, so a function must be importable: one
at the top level of a test file is. Rank processes run torch on one thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import pickle
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

PRELOADED = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "hypothesis",
    "pytest",
    "govray.engine.step",
    "govray.train.driver.trainer",
    "tests.support.cases",
)
"""What test files import is imported once, and not by every process that unpickles from one."""

_START_SECONDS = 300.0
_MOST_THREADS = 16
"""Each group that something keeps has three, and one wakes a hundred times a second."""


class Hung(AssertionError):
    """A rank did not answer in time, or died."""


class RankPool:
    """A fixed number of rank processes."""

    def __init__(self, size: int, *, timeout: float = 120.0) -> None:
        self.size = size
        self.timeout = timeout
        self._calls = 0
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Results by rank; the first exception of a rank is raised here, with its traceback."""
        outcomes = self.outcomes(function, *args)
        for rank, outcome in enumerate(outcomes):
            if isinstance(outcome, BaseException):
                outcome.add_note(f"on rank {rank} of {self.size}")
                raise outcome
        return outcomes

    def outcomes(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Results by rank, an exception standing for the result of a rank that raised."""
        if not self._processes:
            self._start()
        self._calls += 1
        task = pickle.dumps((f"{self._folder.name}/{self._calls}", self.timeout, function, args))
        for pipe in self._pipes:
            pipe.send_bytes(task)
        answers: dict[Connection, Any] = {}
        deadline = time.monotonic() + self.timeout
        while missing := [pipe for pipe in self._pipes if pipe not in answers]:
            ready = wait(missing, timeout=max(0.0, deadline - time.monotonic()))
            try:
                answers |= {pipe: pickle.loads(pipe.recv_bytes()) for pipe in ready}
            except EOFError:
                ready = []
            if not ready:
                ranks = [self._pipes.index(pipe) for pipe in missing]
                self._dump_and_kill()
                raise Hung(f"no answer from rank(s) {ranks} of {self.size}, see stderr")
        in_order = [answers[pipe] for pipe in self._pipes]
        if any(_threads(process.pid) > _MOST_THREADS for process in self._processes):
            self._end()
        return in_order

    def close(self) -> None:
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send_bytes(pickle.dumps(None))
        for process in self._processes:
            process.join(5)
        self._kill()

    def _start(self) -> None:
        # Forked from a clean server that has imported the slow things once.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED])
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:  # importing torch may take long, and is no part of a call
            if not pipe.poll(_START_SECONDS) or pickle.loads(pipe.recv_bytes()) != "ready":
                self._dump_and_kill()
                raise Hung("rank processes do not start")

    def _dump_and_kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError):  # it died, and nobody knows yet
                    os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except FileNotFoundError:
        return 0


def _serve(rank: int, size: int, pipe: Connection) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    gc.freeze()  # so that a collection looks at what calls left, and at nothing imported before
    pipe.send_bytes(pickle.dumps("ready"))
    with contextlib.suppress(EOFError):
        while (answer := _answer(pipe.recv_bytes(), rank, size)) is not None:
            pipe.send_bytes(answer)


def _answer(task: bytes, rank: int, size: int) -> bytes | None:
    import numpy
    import torch
    import torch.distributed as dist

    try:
        call = pickle.loads(task)
        if call is None:
            return None
        store, timeout, function, args = call
        # Only now has every rank answered the call before: none still uses its group.
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()  # a group ends with the last object that holds it
        dist.init_process_group(
            "gloo",
            init_method=Path(store).as_uri(),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
        dist.barrier()
        # Commits hold the generators' states, and the process may be a new one.
        random.seed(rank)
        numpy.random.seed(rank)
        torch.manual_seed(rank)
        return pickle.dumps(function(*args))
    except BaseException as error:
        # At once, so that ranks that wait for this one notice.
        if dist.is_initialized():
            dist.destroy_process_group()
        error.add_note("".join(traceback.format_exception(error)))
        try:
            answer = pickle.dumps(error)
            pickle.loads(answer)
        except Exception:
            answer = pickle.dumps(RuntimeError("\n".join(traceback.format_exception(error))))
        return answer


@pytest.fixture(scope="session")
def one_rank() -> Iterator[RankPool]:
    """A rank alone, with a process group all the same."""
    pool = RankPool(1)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[RankPool]:
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[RankPool]:
    """Four persistent rank processes: gloo's sums depend on the layout only from three on."""
    pool = RankPool(4)
    yield pool
    pool.close()
