"""The default learning rate: linear warm-up, then a cosine.

It depends on the plan step and the configured length, never on the amount of data. So leaving a
corpus out changes no other update.
"""

from __future__ import annotations

import math

from govray.train.experiment.optimizer import Optimizer

FLOOR = 0.1
"""Share of the learning rate that the cosine ends at."""


def learning_rate(optimizer: Optimizer, step: int, max_steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth at the last step."""
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / optimizer.warmup_steps
    done = (step - optimizer.warmup_steps) / max(1, max_steps - optimizer.warmup_steps)
    return optimizer.lr * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))
