"""A run that goes on under other code: only where that is said, and then everybody reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import govray
from govray.cli import main
from govray.errors import CouldNotCheck, Refused, Stopped
from govray.governance.attestation.environment import EarlierCode
from govray.train.attest.write_model import _earlier_code
from govray.train.driver.trainer import from_experiment
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.replay.replayed_run import replay
from govray.train.run_folder import environment_probe, events, stop_request
from tests.support.deployment import Deployment
from tests.support.solo import run_here

STEPS, AT = 6, 4
OTHER, THIRD = ("sha256:" + letter * 64 for letter in "ab")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    run_here(monkeypatch)
    return Deployment(tmp_path / "here")


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

    trainer = from_experiment(file_of(here), on_step=ask, resume=resume, **more)
    assert trainer.run_config is not None
    run = resume or Path(str(trainer.run_config.storage_path)) / str(trainer.run_config.name)
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
        from_experiment(file_of(here), resume=run).train(attest=True)
    from_experiment(file_of(here), resume=run, other_code=True).train(attest=True)
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


def test_a_run_of_one_code_says_nothing_and_replays_whole(here: Deployment) -> None:
    """The control: the same stop and resume, with the permission, under the same code."""
    run = stopped(here)
    from_experiment(file_of(here), resume=run, other_code=True).train(attest=True)
    assert govray.verify(run / "model", trust_root=here.root).attestation.run.earlier_code is None
    assert not [each for each in events.read(run) if isinstance(each, events.OtherCode)]
    assert replay(run).identical


def test_each_code_has_its_steps(here: Deployment, under: Callable[[str], None]) -> None:
    run = stopped(here, after=2)
    under(OTHER)
    stopped(here, resume=run, other_code=True)
    under(THIRD)
    from_experiment(file_of(here), resume=run, other_code=True).train(attest=True)
    earlier = govray.verify(run / "model", trust_root=here.root).attestation.run.earlier_code
    assert earlier is not None
    assert [each.step for each in earlier] == [2, AT]
    assert earlier[1].code_digest == OTHER


def test_steps_that_ran_again_under_the_other_code_are_not_comparable() -> None:
    """A commit was damaged, or the run rolled back, behind the change."""
    record: Any = type("Record", (), {})()
    record.earlier = (
        EarlierCode(step=40, code_digest=OTHER),
        EarlierCode(step=80, code_digest=THIRD),
    )
    at = "2026-11-10T08:00:00Z"

    def began(step: int) -> events.AttemptStarted:
        return events.AttemptStarted(at=at, attempt=1, world_size=1, step=step)

    def steps(*log: events.AnyEvent) -> list[int]:
        return [each.step for each in _earlier_code(record, log)]

    first, second = (events.OtherCode(at=at, step=step) for step in (40, 80))
    assert steps(began(0), first, began(40), second, began(80)) == [40, 80]
    assert steps(began(0), first, began(20), second, began(80)) == [20, 80]
    assert steps(first, began(40), second, began(60)) == [40, 60]
    assert steps(first, began(40), second, began(20)) == [20]
    assert steps(first, began(0), second, began(80)) == [80]
