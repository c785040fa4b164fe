"""Capturing work of a GPU once, to launch it again by a single call.

A CUDA graph holds the kernels that some code started, with the addresses that they read and write.
Launching it starts all of them at once, and runs none of the code.

All graphs of one capture share the memory that their kernels pass on among themselves. So what a
graph leaves in its results holds until another one of them is launched.

Source: the CUDA Programming Guide, "CUDA Graphs"; ``torch.cuda.graph``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch
from torch import nn

from govray.errors import GovrayError, Refused, UsageError

T = TypeVar("T")

Holding = Callable[[], AbstractContextManager[None]]
"""What has to hold while work is captured."""


class GraphCapture(Protocol):
    """Makes a graph of work."""

    def __call__(self, holding: Holding, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Capture work that reads and writes tensors which stay where they are.

        Returns:
            What the work returned, whose tensors mean nothing yet; and the launch, which fills
            them.
        """
        ...


class CudaCapture:
    """Makes graphs of the device that a model is on."""

    def __init__(self, model: nn.Module) -> None:
        self._device = next(model.parameters()).device
        if self._device.type != "cuda":
            raise UsageError(
                f"the model is on {self._device}, and graphs are of a GPU",
                where="cuda_graphs",
                do="Give workers a GPU by resources.gpus_per_worker, or leave cuda_graphs out",
            )
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, holding: Holding, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Capture work. Nothing runs yet. Raises ``GovrayError``: what the work raises; `Refused`
        if it waits for the device, or does another thing that no graph can hold."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            try:
                # Other threads copy batches and watch collectives meanwhile.
                mode = "thread_local"
                with holding(), torch.cuda.graph(graph, self._pool, capture_error_mode=mode):
                    found = work()
            except RuntimeError as error:
                cause = _first(error)
                if isinstance(cause, GovrayError | torch.OutOfMemoryError):
                    raise cause from None
                raise Refused(
                    f"a pass can't be captured: {str(cause).partition(chr(10))[0]}",
                    where="cuda_graphs",
                    do="Let model and loss_fn read no number of the device and copy nothing to "
                    "it, or leave cuda_graphs out. Start a new process: this one's generators "
                    "may fail",
                ) from error
            finally:
                torch.cuda.set_stream(stream)  # a capture that fails to end leaves its own
        return found, graph.replay


def _first(error: BaseException) -> BaseException:
    """What went wrong first: ending the capture then fails too, and says less."""
    found, before = error, error.__context__
    while before is not None:
        if isinstance(before, RuntimeError | GovrayError):
            found = before
        before = before.__context__
    return found
