"""After a step whose weights may have moved on some ranks only, nothing of the run is recorded."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from govray.engine.startup.weight_watch import WeightWatch
from govray.engine.step import GovernedStep
from govray.errors import Malformed, RankFailed
from govray.train import GovernedTrainer, govern
from govray.train.inputs.experiment_config import Experiment
from govray.train.loop.entrypoint import load_entrypoint
from govray.train.run_folder.ledger_wal import recorded_leaves, recorded_steps
from govray.train.state import snapshot
from tests.support.deployment import Deployment
from tests.support.solo import run_here

STEPS, FAILS_AT = 8, 5


def swallows(config: dict[str, Any]) -> None:
    """A loop that goes on whatever a step raised. The optimizer moves half, and raises once."""
    settings = Experiment.model_validate(config)
    model, loss = load_entrypoint(settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = govern(model, optimizer)
    step = optimizer.step

    def half() -> None:
        optimizer.step = step
        groups = optimizer.param_groups
        optimizer.param_groups = groups[:1]
        step()
        optimizer.param_groups = groups
        raise MemoryError("no room for the rest")

    metrics: dict[str, float] = {}
    for batch in run.batches():
        if batch.step == FAILS_AT:
            optimizer.step = half
        with suppress(RankFailed):
            metrics = run.step(batch, loss)
        run.report(metrics)


def run_of(here: Deployment) -> Path:
    [run] = (here.folder / "runs").glob("*-*")
    return run


def trainer_of(here: Deployment) -> GovernedTrainer:
    trainer = here.trainer(max_steps=STEPS, checkpoint={"every_steps": 3})
    return replace(trainer, train_loop_per_worker=swallows)


def test_a_loop_that_goes_on_can_neither_report_nor_commit(here: Deployment) -> None:
    said = f"step {FAILS_AT} failed when the weights of some ranks may have moved"
    with pytest.raises(RankFailed, match=said):
        trainer_of(here).train()
    newest = snapshot.latest(run_of(here))
    assert newest is None or newest[1] <= FAILS_AT  # the last good step's may be on its way
    assert recorded_steps(run_of(here)) == FAILS_AT


def test_without_that_a_step_half_done_would_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the run goes to its end, with half a step in its weights and none in its
    ledger."""
    run_here(monkeypatch)
    monkeypatch.setattr(GovernedStep, "require_sound", lambda self: None)
    monkeypatch.setattr(WeightWatch, "look", lambda *_: None)
    monkeypatch.setattr(WeightWatch, "stepping", lambda *_, **__: nullcontext())
    run = trainer_of(Deployment(tmp_path / "here")).train()
    newest = snapshot.latest(run)
    assert newest is not None
    assert newest[1] == STEPS
    with pytest.raises(Malformed, match=f"step {FAILS_AT + 1} where step {FAILS_AT} was due"):
        recorded_leaves(run)
