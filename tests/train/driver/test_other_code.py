"""A run that goes on under other code: only where that is said, and then everybody reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import govray
from govray.cli import main
from govray.errors import CouldNotCheck, Refused, Stopped
from govray.train.driver.trainer import GovernedTrainer, _under_its_code
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.inputs.run_listing import earlier_code
from govray.train.inputs.run_record import read_record
from govray.train.replay.replayed_run import replay
from govray.train.run_folder import environment_probe, events, stop_request
from govray.train.run_folder.clock import instant
from tests.support.deployment import Deployment

STEPS, AT = 6, 4
PLACE = "govray.train.driver.trainer"
OTHER, THIRD = ("sha256:" + letter * 64 for letter in "ab")


@pytest.fixture
def under(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets govray's source have another digest."""

    def change(digest: str) -> None:
        for module in (run_listing, environment_probe):
            monkeypatch.setattr(module, "code_digest", lambda: digest)

    return change


def file_of(here: Deployment) -> Experiment:
    checkpoint = {"every_steps": 2, "save_trial_latest": STEPS}
    value = here.experiment(max_steps=STEPS, checkpoint=checkpoint, resources={"num_workers": 1})
    return parse_experiment(value, where="test")


def stopped(here: Deployment, *, after: int = AT, resume: Path | None = None, **more: Any) -> Path:
    def ask(step: int, metrics: Any) -> None:
        if step == after - 2:
            stop_request.request(run, "a test")

    trainer = GovernedTrainer(file_of(here), on_step=ask, resume=resume, **more)
    run = resume or Path(str(trainer.storage_place)) / trainer.run_id
    with pytest.raises(Stopped):
        trainer.train()
    return run


def test_it_is_refused_unless_it_is_said_and_then_the_model_says_so(
    here: Deployment, under: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped(here)
    first = read_record(run).code
    under(OTHER)
    with pytest.raises(Refused, match=r"govray's own code.*--other-code"):
        GovernedTrainer(file_of(here), resume=run).train(attest=True)
    GovernedTrainer(file_of(here), resume=run, other_code=True).train(attest=True)
    [event] = [each for each in events.read(run) if isinstance(each, events.OtherCode)]
    assert event.text == f"goes on under other code: bits are comparable up to step {AT}"
    facts = govray.verify(run / "model", trust_root=here.root).attestation
    assert facts.environment.code_digest == OTHER
    record = read_record(run)
    assert facts.run.earlier_code == record.earlier
    [earlier] = record.earlier
    assert (earlier.step, earlier.code_digest) == (AT, first)
    capsys.readouterr()
    assert main(["verify", str(run / "model"), "--trust-root", str(here.root)]) == 0
    assert f"from step {AT} on: bits are comparable up to there" in capsys.readouterr().out
    # No replay is of all its steps, under whichever code.
    with pytest.raises(CouldNotCheck, match=f"under other code at step {AT}"):
        replay(run)
    under(first)
    assert replay(run, steps=(0, AT)).identical
    under(OTHER)
    assert replay(run, steps=(AT, STEPS)).identical
    with pytest.raises(CouldNotCheck, match="the code changed since the run"):
        replay(run, steps=(0, AT))


@pytest.mark.parametrize("said", [False, True])
def test_a_trial_of_a_search_is_refused_and_nothing_is_offered(
    here: Deployment, under: Callable[[str], None], said: bool
) -> None:
    shared = GovernedTrainer(file_of(here)).share(instant())
    run = stopped(here, shared=shared)
    under(OTHER)
    with pytest.raises(Refused, match="govray's own code") as error:
        GovernedTrainer(file_of(here), resume=run, shared=shared, other_code=said).train()
    assert "--other-code" not in str(error.value)


def test_a_run_of_one_code_says_nothing_and_replays_whole(here: Deployment) -> None:
    """The control: the same stop and resume, with the permission, under the same code."""
    run = stopped(here)
    GovernedTrainer(file_of(here), resume=run, other_code=True).train(attest=True)
    assert govray.verify(run / "model", trust_root=here.root).attestation.run.earlier_code is None
    assert not [each for each in events.read(run) if isinstance(each, events.OtherCode)]
    assert replay(run).identical


def test_each_code_has_its_steps(here: Deployment, under: Callable[[str], None]) -> None:
    run = stopped(here, after=2)
    under(OTHER)
    stopped(here, resume=run, other_code=True)
    under(THIRD)
    GovernedTrainer(file_of(here), resume=run, other_code=True).train(attest=True)
    earlier = govray.verify(run / "model", trust_root=here.root).attestation.run.earlier_code
    assert earlier is not None
    assert [each.step for each in earlier] == [2, AT]
    assert earlier[1].code_digest == OTHER


def test_steps_that_ran_again_under_the_other_code_are_not_comparable(
    here: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit was damaged, or the run rolled back, behind the change."""
    run, at = stopped(here, after=2), "2026-11-10T08:00:00Z"

    def began(step: int) -> events.AttemptStarted:
        return events.AttemptStarted(at=at, attempt=1, world_size=1, step=step)

    def other(step: int) -> events.OtherCode:
        return events.OtherCode(at=at, step=step)

    def steps(*log: events.AnyEvent) -> list[int]:
        folder = tmp_path / f"copy-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(run, folder)
        for number, event in enumerate(log):
            if isinstance(event, events.OtherCode):
                commit = folder, event.step
                monkeypatch.setattr(f"{PLACE}.latest", lambda _, commit=commit: commit)
                record, digest = read_record(folder), f"sha256:{number:064x}"
                code = record.environment.model_copy(update={"code_digest": digest})
                _under_its_code(record, replace(record, environment=code), folder)
            else:
                events.append(folder, event)
        return [
            each.step for each in earlier_code(read_record(folder).earlier, events.read(folder))
        ]

    assert steps(other(3), began(3), other(5), began(5)) == [3, 5]
    assert steps(other(3), began(1), other(5), began(5)) == [1, 5]
    assert steps(other(3), began(3), other(5), began(4)) == [3, 4]
    assert steps(other(3), began(3), other(5), began(1)) == [1]
    assert steps(other(3), began(0), other(5), began(5)) == [5]
    assert steps(other(3), began(1), other(2), began(2)) == [1, 2], "one behind the first change"
    assert steps(other(3), began(3), other(5), other(3), began(3)) == [3], "none ran between"
