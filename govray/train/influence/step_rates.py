"""The learning rate of each step of a run, as its experiment file describes it.

A loop of one's own may use others. A report about such a run says that the file's were taken.
"""

from __future__ import annotations

import torch
from torch import nn

from govray.train.inputs.experiment_config import Experiment
from govray.train.loop.cosine import learning_rate
from govray.train.loop.described_optimizer import make_optimizer
from govray.train.loop.described_schedule import describe_schedule
from govray.train.worker.lr_schedule import learning_rates, make_schedule, replay


def step_rates(experiment: Experiment, steps: int) -> list[float]:
    """The rate of steps 0 … ``steps`` − 1.

    Raises:
        UsageError: A class of the schedule or the optimizer is gone, or takes other arguments.
    """
    make = describe_schedule(experiment.schedule)
    if make is None:
        length = experiment.steps_in(steps)
        return [learning_rate(experiment.optimizer, step, length) for step in range(steps)]
    optimizer = make_optimizer(experiment.optimizer, [nn.Parameter(torch.zeros(2, 2))])
    scheduler = make_schedule(make, optimizer, 0)
    rates: list[float] = []

    def step() -> None:
        rates.append(learning_rates(optimizer)[0])
        scheduler.step()

    replay(step, steps)
    return rates
