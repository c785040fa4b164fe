"""A torch learning-rate scheduler under a run: a function of the plan step, and so never stored.

A scheduler is made once the adapters have joined the optimizer, and stepped once after each
governed step. A resumed run makes it again and steps it as often as the run has stepped. The commit
holds the learning rates of its step, and both must agree.

A scheduler that follows a metric is refused. A loss depends on all data, so a corpus would reach
every layer through the learning rate.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from govray.errors import Refused, UsageError

MakeScheduler = Callable[[Optimizer], LRScheduler]


def make_schedule(make: MakeScheduler, optimizer: Optimizer, step: int) -> LRScheduler:
    """The scheduler as it stands before plan step ``step``.

    Args:
        make: ``optimizer -> scheduler``, such as ``lambda o: CosineAnnealingLR(o, 300)``.
        optimizer: With the hyperparameters that it was made with.
        step: How often it has been stepped.
    """
    scheduler = make(optimizer)
    if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
        raise UsageError(
            f"the learning rate can't follow {type(scheduler).__name__}",
            where="govern(scheduler=...)",
            do="Give a function of the optimizer that returns a torch scheduler which depends "
            "on the step alone",
        )
    replay(scheduler.step, step)
    return scheduler


def learning_rates(optimizer: Optimizer) -> list[float]:
    """Of each parameter group."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def require_rates(optimizer: Optimizer, scheduled: list[float], step: int) -> None:
    """Compare the learning rates that a commit restored with those that the schedule gives."""
    restored = learning_rates(optimizer)
    if restored != scheduled:
        raise Refused(
            f"the learning rates at step {step} were {restored}, and this scheduler gives "
            f"{scheduled}",
            where="govern(scheduler=...)",
            do="Resume with the scheduler that the run began with",
        )


def replay(step: Callable[[], object], times: int) -> None:
    """Step a schedule from its beginning to where a run resumes."""
    with warnings.catch_warnings():
        # An earlier process took the optimizer's steps before this one.
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*optimizer.step")
        for _ in range(times):
            step()
