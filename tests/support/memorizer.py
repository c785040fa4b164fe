"""An entrypoint whose runs report a made-up memorization: as much as a hyperparameter says.

It stands for the monitor. What a trial reports grows with its steps, as memorization does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from govray.engine.model import gpt
from govray.train.worker.run import Run

_memorizes = 0.0


class GPT(gpt.GPT):
    """The built-in model. ``memorizes`` is M after 16 steps."""

    def __init__(self, *, memorizes: float = 0.0, **more: Any) -> None:
        super().__init__(**more)
        self.memorizes = memorizes


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    global _memorizes
    _memorizes = float(model.memorizes)
    return gpt.loss(model, batch)


def _measured(step: Any) -> Any:
    def measured(run: Run, batch: Any, loss_fn: Any) -> dict[str, float]:
        metrics = step(run, batch, loss_fn)
        return metrics | {"memorization": _memorizes * (metrics["step"] + 1) / 16}

    return measured


Run.step = _measured(Run.step)  # in each process that imports this module
