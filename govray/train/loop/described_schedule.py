"""The learning-rate schedule that an experiment file describes, as `govern` takes it.

`govray.train.worker.lr_schedule` steps and replays it. The default cosine has no scheduler: the
loop sets it at each step (`govray.train.loop.experiment_loop`).
"""

from __future__ import annotations

import math
from itertools import accumulate

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, SequentialLR

from govray.errors import UsageError
from govray.train.experiment.sections import COSINE, Schedule
from govray.train.loop.described_optimizer import check_arguments, constructing, imported_class
from govray.train.worker.lr_schedule import MakeScheduler, learning_rates, make_schedule, replay

_WHERE = "schedule"


def describe_schedule(described: Schedule) -> MakeScheduler | None:
    """``optimizer -> scheduler``; None for the default cosine.
    Raises ``UsageError``: on the call: a class does not exist, or does not take its arguments."""
    if described.name == COSINE:
        return None
    parts = described.parts

    def make(optimizer: Optimizer) -> LRScheduler:
        made = [_scheduler(each, optimizer) for each in parts]
        if len(made) == 1:
            return made[0]
        return SequentialLR(
            optimizer, made, list(accumulate(each.steps or 0 for each in parts[:-1]))
        )

    return make


def check_schedule(described: Schedule, optimizer: Optimizer, max_steps: int) -> None:
    """Step through all of a schedule, before anything trains under it.

    Args:
        optimizer: Of its kind, over any parameters; its rates are moved.

    Raises:
        UsageError: A class or an argument is wrong, or the schedule follows a metric. Or it ends
            before the run does, or a rate is no number.
    """
    if (make := describe_schedule(described)) is None:
        return
    scheduler = make_schedule(make, optimizer, 0)
    done = 0

    def step() -> None:
        nonlocal done
        scheduler.step()
        done += 1
        if not all(map(math.isfinite, learning_rates(optimizer))):
            raise ValueError("the learning rate is no number")

    try:
        replay(step, max_steps)
    except Exception as error:  # of a user's own class, whatever it is
        raise UsageError(
            f"after step {done} of {max_steps}: {error}",
            where=_WHERE,
            do="Make it as long as the run",
        ) from error


def _scheduler(part: Schedule, optimizer: Optimizer) -> LRScheduler:
    kind = imported_class(part.name, LRScheduler, where=f"{_WHERE}.name")
    if issubclass(kind, ReduceLROnPlateau):
        raise UsageError(
            f"{part.name} follows a metric, so one corpus would move what another learns",
            where=f"{_WHERE}.name",
            do="Name a scheduler that depends on the step alone",
        )
    check_arguments(kind, part.arguments, where=f"{_WHERE}.arguments")
    with constructing(kind, where=f"{_WHERE}.arguments"):
        return kind(optimizer, **part.arguments)
