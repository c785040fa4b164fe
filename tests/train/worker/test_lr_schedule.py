"""A scheduler is a function of the step: replayed, compared, never stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

from govray.errors import Refused, UsageError
from govray.train.worker.lr_schedule import learning_rates, make_schedule, require_rates

MAKES: list[Callable[[torch.optim.Optimizer], schedulers.LRScheduler]] = [
    lambda o: schedulers.CosineAnnealingLR(o, 20),
    lambda o: schedulers.OneCycleLR(o, [0.2, 0.4], total_steps=20),
    lambda o: schedulers.MultiStepLR(o, [2, 5]),
    lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, total_iters=3), schedulers.ExponentialLR(o, 0.9)], [3]
    ),
]


def an_optimizer() -> torch.optim.Optimizer:
    """As after `govern`: the adapters joined as a group of their own."""
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(2))], lr=0.1)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "lr": 0.3})
    return optimizer


@pytest.mark.parametrize("make", MAKES)
def test_a_resumed_schedule_is_the_undisturbed_one(
    make: Callable[[torch.optim.Optimizer], schedulers.LRScheduler],
) -> None:
    straight, rates = an_optimizer(), []
    scheduler = make_schedule(make, straight, 0)
    for _ in range(12):
        rates.append(learning_rates(straight))
        straight.step()
        scheduler.step()
    assert rates[0] != rates[7]  # the control
    for start in (1, 4, 7):
        resumed = an_optimizer()
        scheduler = make_schedule(make, resumed, start)
        for step in range(start, 12):
            assert learning_rates(resumed) == rates[step]
            resumed.step()
            scheduler.step()


def test_another_schedule_than_the_commits_is_refused() -> None:
    optimizer = an_optimizer()
    make_schedule(MAKES[0], optimizer, 5)
    scheduled = learning_rates(optimizer)
    require_rates(optimizer, scheduled, 5)
    optimizer.param_groups[1]["lr"] *= 1.5  # what the commit restored
    with pytest.raises(Refused, match="learning rates at step 5 were"):
        require_rates(optimizer, scheduled, 5)


def test_what_follows_a_metric_is_refused() -> None:
    with pytest.raises(UsageError, match="can't follow ReduceLROnPlateau"):
        make_schedule(lambda o: schedulers.ReduceLROnPlateau(o), an_optimizer(), 0)
    with pytest.raises(UsageError, match="can't follow float"):
        make_schedule(lambda o: 0.1, an_optimizer(), 0)  # type: ignore[arg-type, return-value]
