"""Schedules by import path: torch's own rates, and none that ends early or follows a metric."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from govray.errors import UsageError
from govray.train.experiment.sections import Optimizer, Schedule
from govray.train.loop.described_optimizer import check_optimizer
from govray.train.loop.described_schedule import check_schedule, describe_schedule
from govray.train.worker.lr_schedule import learning_rates, make_schedule

TORCH = "torch.optim.lr_scheduler"
WARM = {
    "name": f"{TORCH}.LinearLR",
    "arguments": {"start_factor": 0.1, "total_iters": 5},
    "steps": 5,
    "then": {"name": f"{TORCH}.CosineAnnealingLR", "arguments": {"T_max": 15}},
}


def an_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.3)


def rates_of(scheduler: lr_scheduler.LRScheduler, optimizer: torch.optim.Optimizer) -> list[float]:
    found = []
    for _ in range(20):
        found += learning_rates(optimizer)
        optimizer.step()
        scheduler.step()
    return found


def test_schedules_one_after_another_are_torchs_own_composition() -> None:
    ours, theirs = an_optimizer(), an_optimizer()
    make = describe_schedule(Schedule.model_validate(WARM))
    assert make is not None
    torchs = lr_scheduler.SequentialLR(
        theirs,
        [
            lr_scheduler.LinearLR(theirs, start_factor=0.1, total_iters=5),
            lr_scheduler.CosineAnnealingLR(theirs, T_max=15),
        ],
        [5],
    )
    rates = rates_of(make_schedule(make, ours, 0), ours)
    assert rates == rates_of(torchs, theirs)
    resumed = an_optimizer()
    make_schedule(make, resumed, 7)
    assert learning_rates(resumed) == rates[7:8] != rates[6:7]


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"name": f"{TORCH}.OneCycleLR", "arguments": {"max_lr": 0.1, "total_steps": 10}},
         "after step 10 of 20: Tried to step 11 times"),
        ({"name": f"{TORCH}.ReduceLROnPlateau"}, "follows a metric"),
        ({"name": f"{TORCH}.MultiStepLR", "arguments": {"gama": 1}}, "did you mean 'gamma'"),
        ({"name": f"{TORCH}.MultiStepLR"}, "needs the argument 'milestones'"),
        ({"name": f"{TORCH}.StepLr"}, "did you mean 'StepLR'"),
        ({"name": f"{TORCH}.ExponentialLR", "arguments": {"gamma": 1.0e+300}}, "no number"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_before_anything_starts(described: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"schedule.*{message}"):
        check_schedule(Schedule(**described), check_optimizer(Optimizer()), 20)
