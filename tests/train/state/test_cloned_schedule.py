"""A clone goes on from its donor's commit under its own learning rate and torch scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from govray.errors import Refused
from govray.train.checkpoint import commit_folder
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.loop.described_schedule import describe_schedule
from govray.train.state import cloning, snapshot
from govray.train.state.cloning import clone
from govray.train.worker.lr_schedule import learning_rates, make_schedule
from tests.support.deployment import Deployment
from tests.support.solo import run_here

COSINE = "torch.optim.lr_scheduler.CosineAnnealingLR"
STEPS, TAKEN = 8, 4


def trainer_of(here: Deployment, lr: float, t_max: int, **more: Any) -> GovernedTrainer:
    value = here.experiment(
        optimizer={"name": "torch.optim.SGD", "lr": lr, "arguments": {"momentum": 0.9}},
        schedule={"name": COSINE, "arguments": {"T_max": t_max}},
        max_steps=STEPS,
        checkpoint={"every_steps": TAKEN, "save_trial_latest": 2},
        resources={"num_workers": 1},
    )
    return GovernedTrainer(parse_experiment(value, where="test"), **more)


def cloned(here: Deployment, trainer: GovernedTrainer) -> Path:
    """A clone of a donor's commit in the middle, to go on with another trainer's settings."""
    donor = trainer_of(here, 0.1, STEPS).train()
    run = here.folder / "runs" / "clone"
    config = dict(trainer.loop_config)
    clone(Path(str(donor)), TAKEN, run, trainer.experiment, config, {})
    return run


def rates(trainer: GovernedTrainer, step: int) -> list[float]:
    """What the trainer's own schedule gives at a step."""
    make = describe_schedule(trainer.experiment.schedule)
    assert make is not None
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=trainer.experiment.optimizer.lr)
    make_schedule(make, optimizer, step)
    return learning_rates(optimizer)


def groups(run: Path) -> list[dict[str, Any]]:
    """Hyperparameters of each parameter group in the last commit."""
    found = snapshot.latest(run)
    assert found is not None
    committed: Any = json.loads(commit_folder.open_commit(found[0]).files["optimizer.json"])
    return [each["hyperparameters"] for each in committed["groups"]]


def test_a_clone_steps_its_own_schedule_from_the_commit_s_step(here: Deployment) -> None:
    trainer = trainer_of(here, 0.02, 2 * STEPS)
    run = cloned(here, trainer)
    stepped: list[int] = []
    trainer_of(
        here, 0.02, 2 * STEPS, resume=run, on_step=lambda step, metrics: stepped.append(step)
    ).train()
    assert stepped == list(range(TAKEN, STEPS))
    [ancestor] = read_record(run).ancestry
    assert ancestor.step == TAKEN
    [expected] = rates(trainer, STEPS)
    [donors] = rates(trainer_of(here, 0.1, STEPS), STEPS)
    assert expected != pytest.approx(donors)
    assert len(groups(run)) == 2  # an adapter's too
    for group in groups(run):
        assert (group["lr"], group["initial_lr"]) == (expected, 0.02)


def test_with_the_donor_s_rates_in_its_commit_a_clone_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the schedule notices rates that are not its own."""
    run_here(monkeypatch)
    monkeypatch.setattr(cloning, "_retuned", lambda stored, experiment: stored)
    here = Deployment(tmp_path / "here")
    run = cloned(here, trainer_of(here, 0.02, 2 * STEPS))
    with pytest.raises(Refused, match="the learning rates at step 4 were"):
        trainer_of(here, 0.02, 2 * STEPS, resume=run).train()
