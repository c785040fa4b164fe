"""A stand-in for CUDA graphs where there is no GPU: its launch runs the work again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from govray.engine.graphs.cuda_graph import Holding


class RerunCapture:
    """Captures work that it does again at each launch."""

    def __init__(self, *_: object) -> None:
        self.captured = self.launched = 0

    def __call__(self, holding: Holding, work: Callable[[], Any]) -> tuple[Any, Any]:
        self.captured += 1
        with holding():
            found = work()
        tensors = _tensors(found)
        with torch.no_grad():
            for tensor in tensors:
                tensor.detach().fill_(7)  # a capture computes nothing

        def launch() -> None:
            self.launched += 1
            with holding():
                again = _tensors(work())
            with torch.no_grad():
                for tensor, new in zip(tensors, again, strict=True):
                    tensor.detach().copy_(new.detach())

        return found, launch


def _tensors(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    if is_dataclass(found):
        return [t for f in fields(found) for t in _tensors(getattr(found, f.name))]
    if isinstance(found, dict):
        return [t for each in found.values() for t in _tensors(each)]
    return [t for each in found for t in _tensors(each)] if isinstance(found, tuple) else []
