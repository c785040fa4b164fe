"""Processes of `jax.distributed` on CPUs, joined by gloo: one call, and they end."""

from __future__ import annotations

import multiprocessing
import socket
import traceback
from collections.abc import Callable
from typing import Any

_SECONDS = 240.0


def run_ranks(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """``function(rank, world, *args)`` in every process; results by rank.

    What a process raises is raised here, with its traceback as a note.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["govray.engine.jax", "tests.support.tiny_flax"])
    pipes, processes = [], []
    for rank in range(world):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, address, rank, world, function, args), daemon=True
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        answers = []
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(_SECONDS), f"no answer from rank {rank} of {world}"
            answers.append(pipe.recv())
    finally:
        for process in processes:
            process.join(10)
            process.kill()
            process.join()
    for rank, answer in enumerate(answers):
        if isinstance(answer, BaseException):
            answer.add_note(f"on rank {rank} of {world}")
            raise answer
    return answers


def _serve(
    pipe: Any, address: str, rank: int, world: int, function: Callable[..., Any], args: Any
) -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(address, world, rank)
        pipe.send(function(rank, world, *args))
    except BaseException as error:
        error.add_note("".join(traceback.format_exception(error)))
        try:
            pipe.send(error)
        except Exception:
            pipe.send(RuntimeError("".join(traceback.format_exception(error))))
    jax.distributed.shutdown()
