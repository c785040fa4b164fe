"""Rank processes that JAX joins, on one core each as far as XLA permits.

On a CPU, XLA has pools of threads for kernels and for dispatch. Each pool gets one thread, and
kernels are not split. The Python thread, gloo's and the runtime's own remain beside them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax

from benchmarks.processes import run_processes

_ONE_KERNEL = "--xla_cpu_multi_thread_eigen=false"


def run_jax_ranks(
    function: Callable[..., Any], world_size: int, device: str, *args: Any
) -> list[Any]:
    """Call ``function(rank, *args)`` on every rank.

    Args:
        function: At the top level of a module.
        world_size: Number of processes. One alone is not joined to anything.
        device: ``cpu`` (gloo) or ``cuda`` (NCCL, one GPU for each process).

    Returns:
        The results, by rank.

    Raises:
        GovrayError: The first rank's error.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return run_processes(
        function,
        world_size,
        partial(_joined, address, world_size, device),
        *args,
        preload=None if device == "cuda" else [function.__module__],
    )


@contextmanager
def _joined(address: str, world_size: int, device: str, rank: int) -> Iterator[None]:
    jax.config.update("jax_platforms", device)
    if device == "cpu":
        # Both are read when XLA's client starts.
        os.environ["PJRT_NPROC"] = "1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_KERNEL}"
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if world_size == 1:
        yield
        return
    own = [rank] if device == "cuda" else None
    jax.distributed.initialize(address, world_size, rank, local_device_ids=own)
    yield
    jax.distributed.shutdown()  # waits for all: not after an error
