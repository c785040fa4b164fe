"""What a governed run and the training loop of a host framework agree on.

`run.step` does forward, backward, all-reduce and the optimizer's step, and leaves no gradient
behind. So the backward pass, the clipping and the optimizer's step of the host have no effect. The
host still decides when to evaluate, what to log, and the learning rate. All its other settings must
equal the run's, or are refused.

Invariants:

* The learning rate depends on the plan step alone: a resumed run replays its schedule from the
  beginning and never restores it.
* Batches are read once, in plan order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

import torch
from torch import nn
from torch.optim import Optimizer

from govray.engine.batch import StepBatch
from govray.errors import Refused, UsageError
from govray.train.worker.lr_schedule import replay
from govray.train.worker.run import Run
from govray.train.worker.run_start import govern


class PlannedBatches:
    """The remaining batches of a run as a host's dataloader: read once.

    Its length is the plan's, also in a resumed run: hosts place evaluations by it.

    Raises:
        UsageError: When read a second time.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._begun = False

    def __len__(self) -> int:
        return self._run.order.plan.max_steps

    def __iter__(self) -> Iterator[StepBatch]:
        if self._begun:
            raise UsageError(
                "the batches of this run have been read already",
                do="Train once: the plan's steps are all of the run, whatever its epochs",
            )
        self._begun = True
        yield from self._run.batches()


def govern_hosted(model: nn.Module, optimizer: Optimizer) -> Run:
    """`govern`, but the optimizer keeps the hyperparameters that it was made with.

    A commit holds the hyperparameters of its step. The host's schedule is replayed from its
    beginning, so it must start from the first ones. Adapters get those of the optimizer's first
    group, where hosts put their settings.
    """
    made = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    run = govern(model, optimizer)
    of_adapters = {name: made[0][name] for name in optimizer.defaults}
    for group, first in zip_longest(optimizer.param_groups, made, fillvalue=of_adapters):
        parameters = group["params"]
        group.clear()
        group.update(first, params=parameters)
    return run


def replay_schedule(step: Callable[[], object], run: Run) -> None:
    """Advance a schedule from step 0 to where the run begins."""
    replay(step, run.start_step)


def require_device(setting: str, chosen: torch.device, worker: torch.device, do: str) -> None:
    """Refuse a host that would keep its model or batches on another device than the worker's.
    ``chosen``: the host's; without an index it is any of its kind."""
    if chosen.type != worker.type or chosen.index not in (None, worker.index):
        raise Refused(
            f"the host computes on {chosen}, and this worker, with its batches, on {worker}",
            where=setting,
            do=do,
        )


def require_same(setting: str, value: float, argument: str, governed: float | None) -> None:
    """Refuse a host's setting that differs from the run's.
    ``argument``: its name in the experiment."""
    if value != governed:
        raise Refused(
            f"{setting}={value}, but the run has {argument}={governed}",
            where=setting,
            do=f"The run decides. Write {argument}: {value} into its experiment, or leave "
            f"{setting} out or the same",
        )
