"""Stopping and resuming by the same command, in this process: one rank, no Ray."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from govray import cli
from govray.errors import Refused, Stopped, UsageError
from govray.governance.attestation import model_folder
from govray.train.checkpoint import commit_folder as checkpoint
from govray.train.driver import planned_run
from govray.train.driver import trainer as trainer_module
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.run_folder import events, run_lock
from govray.train.run_folder.requests import STOP
from govray.train.state import snapshot
from tests.support.deployment import POLICY, Deployment


def outcome(run: Path) -> dict[str, bytes]:
    found = snapshot.latest(run)
    assert found is not None
    files = checkpoint.load(found[0]).files
    return {
        name: files[name]
        for name in (model_folder.WEIGHTS, "optimizer.safetensors", "ledger.jsonl")
    }


def trainer_of(here: Deployment, **more: Any) -> GovernedTrainer:
    changes = {name: more.pop(name) for name in list(more) if name not in ("resume", "on_step")}
    return GovernedTrainer(parse_experiment(here.experiment(**changes), where="test"), **more)


def asking(here: Deployment, step: int) -> Callable[[int, Any], None]:
    """Ask the only run to stop once this step is done."""

    def on_step(now: int, metrics: Any) -> None:
        if now == step:
            [run] = run_listing.list_runs(here.folder / "runs")
            with pytest.MonkeyPatch.context() as patch:  # else it would wait for this process
                driven = [True]
                patch.setattr(run_lock, "driving", lambda _: bool(driven and driven.pop()))
                assert cli.main(["runs", "stop", str(run)]) == 0

    return on_step


def stopped_at(here: Deployment, step: int) -> Path:
    with pytest.raises(Stopped, match=f"stopped at step {step + 2} of 12") as caught:
        trainer_of(here, on_step=asking(here, step)).train()
    assert caught.value.exit_code == 75
    [run] = run_listing.list_runs(here.folder / "runs")
    return run


def test_a_stopped_run_has_committed_and_ends_with_the_same_bytes(here: Deployment) -> None:
    run = stopped_at(here, 2)
    found = snapshot.latest(run)
    assert found is not None
    assert found[1] == 4
    assert run_listing.inspect(run).state == "stopped"
    resumed = trainer_of(here, resume=run).train()
    assert resumed == run
    assert not STOP.made(run)
    assert run_listing.inspect(run).state == "finished"
    undisturbed = trainer_of(here, name="other").train()
    assert outcome(run) == outcome(undisturbed)
    assert [e.step for e in events.read(run) if isinstance(e, events.Stopped)] == [4]


def test_the_same_command_resumes_then_attests_then_starts_anew(
    here: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped_at(here, 2)
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(here.experiment()))
    capsys.readouterr()  # of what stopped it
    assert cli.main(["train", str(config), "--json"]) == 0
    said = capsys.readouterr()
    assert f"Resuming {run}" in said.err
    assert json.loads(said.out)["run"] == str(run)
    assert run_listing.inspect(run).state == "attested"
    assert cli.main(["train", str(config)]) == 0
    assert "Resuming" not in capsys.readouterr().err
    assert len(run_listing.list_runs(run.parent)) == 2


def test_a_finished_run_is_attested_without_another_step(here: Deployment) -> None:
    run = trainer_of(here).train()
    before = read_record(run)
    assert cli.main(["runs", "resume", str(run)]) == 0
    assert run_listing.inspect(run).state == "attested"
    assert read_record(run) == before
    assert run_lock.last_attempt(run) == 1


def test_a_run_whose_inputs_changed_is_refused_by_name(here: Deployment) -> None:
    run = stopped_at(here, 2)
    policy = here.sign_policy(POLICY.replace("version: 1", "version: 2"))
    governance = here.experiment()["governance"] | {"policy": str(policy)}
    with pytest.raises(Refused, match=f"policy {policy}"):
        trainer_of(here, governance=governance, resume=run).train()
    with pytest.raises(Refused, match="batch plan"):
        trainer_of(here, seed=18, resume=run).train()
    for prepared in (run.parent / "prepared").iterdir():
        prepared.rename(prepared.with_suffix(".away"))
    with pytest.raises(Refused, match="the prepared data that the run reads are gone"):
        trainer_of(here, resume=run).train()
    assert run_listing.inspect(run).state == "interrupted"


def test_a_second_driver_is_refused(here: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stopped_at(here, 2)
    monkeypatch.setattr(run_lock, "_PATIENCE_S", 0.1)
    with (
        run_lock.hold(run),
        pytest.raises(UsageError, match="being driven by process"),
    ):
        trainer_of(here, resume=run).train()


def test_a_run_that_was_taken_over_writes_no_more(here: Deployment) -> None:
    taken: list[Path] = []

    def on_step(now: int, metrics: Any) -> None:
        if now == 3:
            taken.extend(run_listing.list_runs(here.folder / "runs"))
            run_lock.take_over(taken[0])

    with pytest.raises(Refused, match="taken over"):
        trainer_of(here, on_step=on_step).train()
    found = snapshot.latest(taken[0])
    assert found is None


def test_what_was_valid_when_the_run_began_can_be_resumed_later(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps find out what has ended since, and stop or gate it as the policy says."""
    run = stopped_at(here, 3)
    later = here.at + timedelta(days=3)
    for module in (planned_run, trainer_module):
        monkeypatch.setattr(module, "instant", lambda: later)
    trainer_of(here, resume=run).train()
    assert read_record(run).finished == later
    # The control: a run that begins then is refused.
    with pytest.raises(Refused, match="expired"):
        trainer_of(here).train()
