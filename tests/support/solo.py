"""A governed run in this process: one rank, no Ray, seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from govray.data.step_reader import StepReader, StepRows
from govray.storage.place import place
from govray.train.driver import attempts, ray_cluster
from govray.train.driver.progress import StepCallback
from govray.train.inputs.gating import Decisions
from govray.train.inputs.order import Assignment, Order, current
from govray.train.loop.until_govern import Loop
from govray.train.run_folder.run_lock import begin_attempt
from govray.train.state import resume_point
from govray.train.worker import run


@dataclass(frozen=True)
class Rows:
    """What a worker gets as its shard, read here."""

    order: Order
    start_step: int
    checkpoint: Path | None
    attempt: int
    decisions: Decisions

    def steps(self) -> Iterator[StepRows]:
        order = self.order
        reader = StepReader(place(order.prepared), order.manifest, order.plan, rank=0, world=1)
        return reader.steps(self.start_step)


def run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainers train here, as long as the patches last."""

    def fit(
        order: Order,
        loop: Loop,
        *,
        config: Any,
        on_step: StepCallback,
        on_report: StepCallback | None = None,
        **for_ray: object,
    ) -> int:
        folder = Path(order.folder)
        while True:
            attempt = begin_attempt(folder, order.driver).attempt
            found = resume_point.resolve(folder, order)
            torch.manual_seed(order.settings.seed)
            torch.set_num_threads(order.experiment.threads)
            shard = Rows(order, found.step, found.checkpoint, attempt, found.decisions)
            assignment = Assignment(order=order, shard=shard, on_step=on_step, on_report=on_report)
            token = current.set(assignment)
            try:
                loop(dict(config or {}))
            except run.StopRun as stop:
                return stop.step
            except resume_point.RolledBack:
                continue
            finally:
                current.reset(token)
            return order.stop

    monkeypatch.setattr(attempts, "fit", fit)
    monkeypatch.setattr(ray_cluster, "start_ray", lambda *args, **kwargs: None)
    monkeypatch.setattr(run.ray.train, "report", lambda *args, **kwargs: None)


def dies_at(last: int) -> StepCallback:
    """For a run's ``on_step``: it ends with this step, as by Ctrl-C."""

    def on_step(step: int, metrics: Any) -> None:
        if step == last:
            raise KeyboardInterrupt

    return on_step
