"""Runs whose steps are confirmed one step late, as on a GPU. One rank, no Ray.

The optimizer is fused, and `build_step` is told that steps are late. All else is as in any run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from govray.engine.step import GovernedStep, build_step
from govray.errors import RankFailed
from govray.train.checkpoint import commit_folder
from govray.train.driver.trainer import GovernedTrainer
from govray.train.run_folder.ledger_wal import recorded_leaves, recorded_steps
from govray.train.state.snapshot import latest
from govray.train.worker import run as worker
from govray.train.worker import run_start
from tests.support.deployment import Deployment
from tests.support.killed_training import Killed
from tests.support.solo import run_here

STEPS, EVERY = 10, 4


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)
    monkeypatch.setattr(run_start, "build_step", partial(build_step, late=True))


def trainer_of(here: Deployment, **fields: Any) -> GovernedTrainer:
    return replace(
        here.trainer(
            max_steps=STEPS,
            checkpoint={"every_steps": EVERY},
            optimizer={"name": "torch.optim.AdamW", "lr": 1e-2, "arguments": {"fused": True}},
            ema={"decay": 0.9},
            profiling={"steps": "1:3"},
        ),
        **fields,
    )


def committed(run: Path) -> tuple[int, dict[str, bytes]]:
    """Steps done, and every file of tensors, of the newest commit."""
    found = latest(run)
    assert found is not None
    files: Mapping[str, bytes] = commit_folder.load(found[0]).files
    return found[1], {name: data for name, data in files.items() if name.endswith(".safetensors")}


def lines(run: Path) -> list[bytes]:
    return [leaf.line for leaf in recorded_leaves(run)]


def run_of(here: Deployment, train: Callable[[], object], error: type[BaseException]) -> Path:
    """The folder of a run that ends with an error."""
    before = {*here.folder.glob("runs/tiny-*")}
    with pytest.raises(error):
        train()
    [run] = {*here.folder.glob("runs/tiny-*")} - before
    return run


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(tmp_path_factory.mktemp("late") / "here")


@pytest.fixture(scope="module")
def at_once(here: Deployment) -> Path:
    """The same run, with steps that are waited for."""
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        patch.setattr(run_start, "build_step", partial(build_step, late=False))
        return Path(str(trainer_of(here).train()))


def test_a_late_run_ends_with_the_bytes_and_the_ledger_of_any_other(
    here: Deployment, at_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    waited: list[int] = []
    queue = GovernedStep.queue

    def noting(step: GovernedStep, batch: Any, loss_fn: Any, **settings: Any) -> Any:
        confirmed = queue(step, batch, loss_fn, **settings)
        waited.extend(each.step for each in confirmed if each.step == batch.step)
        return confirmed

    monkeypatch.setattr(GovernedStep, "queue", noting)
    run = Path(str(trainer_of(here, on_step=lambda step, _: told.append(step)).train()))
    assert committed(run) == committed(at_once)
    assert lines(run) == lines(at_once)
    assert told == [*range(STEPS)]
    # At both ends of the profile, at each commit, and at the end.
    assert waited == [0, 2, 3, 7, 9]


def poisoned(at: int, patch: pytest.MonkeyPatch) -> None:
    """Let the loss of a step be no number."""
    queue = GovernedStep.queue

    def with_nan(step: GovernedStep, batch: Any, loss_fn: Any, **settings: Any) -> Any:
        def no_number(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
            found: Tensor = loss_fn(model, rows)
            return found * math.nan

        return queue(step, batch, no_number if batch.step == at else loss_fn, **settings)

    patch.setattr(GovernedStep, "queue", with_nan)


@pytest.mark.parametrize("at", [5, 7], ids=["late", "before a commit"])
def test_a_step_that_the_device_denies_is_neither_recorded_nor_committed(
    here: Deployment, at_once: Path, at: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        poisoned(at, patch)
        run = run_of(here, trainer_of(here).train, RankFailed)
    # The step before may be confirmed in the same call, and is done again.
    assert recorded_steps(run) in (at - 1, at)
    newest = latest(run)
    assert newest is None or newest[1] == EVERY  # it may still be on its way
    trainer_of(here, resume=run).train()
    assert committed(run) == committed(at_once)
    assert lines(run) == lines(at_once)


def killed_behind(step: int, train: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Die when a step is queued, and nothing of that call is recorded."""
    governed_of = worker.Run._governed

    def governed(run: worker.Run, batch: Any, loss_fn: Any, **settings: Any) -> Any:
        confirmed = governed_of(run, batch, loss_fn, **settings)
        if batch.step == step:
            run._commits.settle(None)
            raise Killed
        return confirmed

    with patch.context() as patched:
        patched.setattr(worker.Run, "_governed", governed)
        train()


@pytest.mark.parametrize("step", [4, 5])
def test_a_run_killed_between_a_step_and_its_confirmation_does_it_again(
    here: Deployment, at_once: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    run = run_of(here, lambda: killed_behind(step, trainer_of(here).train, monkeypatch), Killed)
    assert recorded_steps(run) == max(EVERY, step - 1)
    assert committed(run)[0] == EVERY
    trainer_of(here, resume=run).train()
    assert committed(run) == committed(at_once)
    assert lines(run) == lines(at_once)


def test_a_commit_that_waits_for_no_step_would_hold_weights_ahead_of_its_ledger(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: both runs die behind step 6, with a commit after step 3."""

    def killed() -> tuple[int, dict[str, bytes]]:
        train = trainer_of(here).train
        return committed(run_of(here, lambda: killed_behind(6, train, monkeypatch), Killed))

    good = killed()
    monkeypatch.setattr(worker.Run, "_waited_for", lambda run, step: False)
    ahead = killed()
    assert good[0] == ahead[0] == EVERY
    assert good[1] != ahead[1]
