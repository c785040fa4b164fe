"""The default learning rate: linear warm-up, then a cosine.

It depends on the plan step and the configured length, never on the amount of data. So leaving a
corpus out changes no other update.
"""

from __future__ import annotations

import math

import torch
from torch.optim.lr_scheduler import LRScheduler

from govray.train.experiment.optimizer import FLOOR, Optimizer


def learning_rate(optimizer: Optimizer, step: int, max_steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth at the last step."""
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / optimizer.warmup_steps
    done = (step - optimizer.warmup_steps) / max(1, max_steps - optimizer.warmup_steps)
    return optimizer.lr * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


class CosineWithWarmup(LRScheduler):
    """The same as a torch scheduler, for one's own loop; all parameter groups have one rate."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, described: Optimizer, max_steps: int
    ) -> None:
        self._described = described
        self._max_steps = max_steps
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        """The rate of each parameter group at this step."""
        rate = learning_rate(self._described, self.last_epoch, self._max_steps)
        return [rate] * len(self.optimizer.param_groups)
