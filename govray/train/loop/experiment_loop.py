"""The training loop behind an experiment file: its model, optimizer and schedule, or its own loop.

A loop of one's own obeys the file where it uses `optimizer_of` and `schedule_of`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from govray.train.experiment.sections import FLOOR, Optimizer
from govray.train.inputs.experiment_config import Experiment
from govray.train.loop.described_optimizer import make_optimizer
from govray.train.loop.described_schedule import describe_schedule
from govray.train.loop.entrypoint import find_entrypoint, own_loop, resolve
from govray.train.worker.lr_schedule import MakeScheduler
from govray.train.worker.run_start import govern
from govray.train.worker.shard_model import shard

REPORTED = ("loss", "memorization", "rows", "seconds", "step", "targets")
"""Names of the numbers that the loop reports; memorization where the policy's monitor measures."""


def optimizer_of(config: dict[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that an experiment file describes, over a model's parameters.
    ``model``: as `govern` will get it; sharded already where it is to be."""
    experiment = Experiment.model_validate(config)
    return make_optimizer(experiment.optimizer, model.parameters())


def schedule_of(config: dict[str, Any]) -> MakeScheduler:
    """The schedule that an experiment file describes, as `govern` takes it: for a ``config``."""
    experiment = Experiment.model_validate(config)
    return describe_schedule(experiment.schedule) or partial(
        CosineWithWarmup, described=experiment.optimizer, max_steps=experiment.steps
    )


def train_loop(config: dict[str, Any]) -> None:
    """The loop that `GovernedTrainer` runs; ``config`` is the JSON of an `Experiment`.
    If the entrypoint is a loop, that one runs, and gets the same ``config``."""
    experiment = Experiment.model_validate(config)
    if loop := own_loop(experiment):
        loop(config)
        return
    if experiment.framework == "jax":
        from govray.train.jax.flax_loop import train_flax

        train_flax(experiment, *resolve(experiment))
        return
    build, loss = find_entrypoint(experiment)
    model = shard(build)
    optimizer = make_optimizer(experiment.optimizer, model.parameters())
    scheduler = describe_schedule(experiment.schedule)
    run = govern(model, optimizer, scheduler)
    for batch in run.batches():
        if scheduler is None:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(experiment.optimizer, batch.step, experiment.steps)
        run.advance(batch, loss)


def learning_rate(optimizer: Optimizer, step: int, max_steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth at the last step.
    It never depends on the amount of data: leaving a corpus out changes no other update."""
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
