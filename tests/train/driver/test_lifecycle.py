"""Runs whose workers, controller or driver die, and runs that are told to stop.

Whatever happens, a run ends with the bytes of one that nothing happened to.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray.train
import ray.util.state
import yaml

from govray import cli
from govray.checkpoint import commit_folder
from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.train import GovernedTrainer
from govray.train.driver.trainer import from_experiment
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.run_folder import events
from govray.train.run_folder.ledger_wal import recorded_steps
from govray.train.state import snapshot
from tests.support import loops
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked

pytestmark = pytest.mark.usefixtures("cluster")

COMPARED = (model_folder.WEIGHTS, "optimizer.safetensors", "optimizer.json", snapshot.LEDGER)


def outcome(run: Path) -> dict[str, bytes]:
    """Everything that a run ends with, of its last commit."""
    found = snapshot.latest(run)
    assert found is not None
    files = commit_folder.load(found[0]).files
    adapters = [name for name in files if name.endswith(model_folder.ADAPTER_WEIGHTS)]
    return {name: files[name] for name in (*COMPARED, *adapters)}


def trainer_of(deployment: Deployment, name: str, **changes: Any) -> GovernedTrainer:
    changes = {"name": name, "entrypoint": "tests.support.slow_gpt:GPT"} | changes
    return from_experiment(parse_experiment(deployment.experiment(**changes), where="test"))


def at_step(step: int, action: Callable[[], object]) -> Callable[[int, Any], None]:
    """Do something once, when the driver hears of a step at or beyond this one."""
    done = []

    def on_step(now: int, metrics: Any) -> None:
        if now >= step and not done:
            done.append(now)
            action()

    return on_step


def only_run(deployment: Deployment, name: str) -> Path:
    [run] = (deployment.folder / "runs").glob(f"{name}-*")
    return run


def failures_of(run: Path) -> list[tuple[str, str]]:
    return [(e.failure, e.decision) for e in events.read(run) if isinstance(e, events.Failed)]


def meeting(trainer: GovernedTrainer, file: Path, action: Callable[[], object]) -> GovernedTrainer:
    """The trainer, whose run waits before step 9 until something was done to it."""
    file.touch()

    def act() -> None:
        try:
            action()
        finally:
            file.unlink()

    return replace(
        trainer,
        train_loop_per_worker=loops.held,
        train_loop_config={**(trainer.train_loop_config or {}), "held_by": str(file)},
        on_step=at_step(6, act),
    )


def test_a_killed_worker_restarts_and_does_not_count(
    finished: Path, deployment: Deployment, tmp_path: Path
) -> None:
    def kill() -> None:
        os.kill(run_listing.workers(only_run(deployment, "worker"))[1].pid, signal.SIGKILL)

    # max_restarts is 0.
    run = meeting(trainer_of(deployment, "worker"), tmp_path / "held", kill).train()
    assert failures_of(run) == [("infrastructure", "restart")]
    assert run_listing.inspect(run).attempts == 2
    assert outcome(run) == outcome(finished)


@pytest.mark.story
def test_a_killed_controller_is_replaced(
    finished: Path, deployment: Deployment, tmp_path: Path
) -> None:
    def kill() -> None:
        # Said, because on a machine with several clusters Ray refuses to guess.
        controllers = ray.util.state.list_actors(
            f"http://{ray._private.worker.get_dashboard_url()}",
            filters=[("class_name", "=", "TrainController"), ("state", "=", "ALIVE")],
            detail=True,
        )
        for controller in controllers:
            with suppress(ProcessLookupError):  # that of the test before may still be listed
                os.kill(controller.pid, signal.SIGKILL)

    run = meeting(trainer_of(deployment, "controller"), tmp_path / "held", kill).train()
    assert failures_of(run) == [("infrastructure", "restart")]
    assert outcome(run) == outcome(finished)


@pytest.mark.story
def test_a_rank_that_fails_in_its_optimizer_and_one_that_leaves_cost_an_attempt_each(
    finished: Path, deployment: Deployment, tmp_path: Path
) -> None:
    trainer = trainer_of(deployment, "optimizer", max_restarts=2, collective_timeout_s=240)
    files = {"fails": str(tmp_path / "fails"), "leaves": str(tmp_path / "leaves")}
    trainer = replace(
        trainer,
        train_loop_per_worker=loops.fails_in_the_optimizer_and_leaves,
        train_loop_config={**(trainer.train_loop_config or {}), **files},
    )
    began = time.monotonic()
    run = trainer.train()
    assert time.monotonic() - began < 240  # nobody waited for the timeout
    assert failures_of(run) == [("user", "restart")] * 2
    told = [e.what for e in events.read(run) if isinstance(e, events.Failed)]
    assert "rank 1, step 5: RuntimeError: a user's bug. All ranks stopped, but some may" in told[0]
    # Rank 0's error names the step; Ray may see rank 1's own before it.
    assert re.search("rank 1(, step 9| failed): SystemExit: 3", told[1])
    assert outcome(run) == outcome(finished)


def test_one_rank_that_is_refused_alone_ends_the_run_at_once(deployment: Deployment) -> None:
    trainer = replace(
        trainer_of(deployment, "alone", max_restarts=3, collective_timeout_s=60),
        train_loop_per_worker=loops.refuses_alone,
    )
    with pytest.raises(Refused, match="this rank alone is refused"):
        trainer.train()
    run = only_run(deployment, "alone")
    assert failures_of(run) == [("refused", "stop")]
    assert run_listing.inspect(run).attempts == 1


@pytest.mark.story
def test_the_same_command_goes_on_after_a_stop_and_after_the_drivers_death(
    finished: Path,
    deployment: Deployment,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    forked: Forked,
) -> None:
    config = tmp_path / "line.yaml"
    config.write_text(
        yaml.safe_dump(deployment.experiment(name="line", entrypoint="tests.support.slow_gpt:GPT"))
    )
    storage = deployment.folder / "runs"

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [forked.govray, "train", config],
            cwd=tmp_path,
            env=os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(command: subprocess.Popen[str], step: int) -> Path:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            assert command.poll() is None, command.communicate()
            found = list(storage.glob("line-*"))
            if found and recorded_steps(found[0]) >= step:
                return found[0]
            time.sleep(0.05)
        raise AssertionError("no step in four minutes")

    def state(run: Path) -> Any:
        capsys.readouterr()
        assert cli.main(["runs", "show", str(run), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    command = start()
    try:
        run = wait(command, 2)
        assert state(run)["state"] == "running"
        assert cli.main(["runs", "stop", str(run)]) == 0
        _, errors = command.communicate(timeout=240)
        assert command.returncode == 75, errors
        stopped = state(run)
        assert stopped["state"] == "stopped"
        assert f"stopped at step {stopped['step']} of 12" in errors
        assert snapshot.latest(run)[1] == stopped["step"]

        command = start()
        wait(command, stopped["step"] + 2)
        command.send_signal(signal.SIGKILL)
        command.communicate(timeout=240)
        assert state(run)["state"] == "interrupted"

        command = start()
        output, errors = command.communicate(timeout=240)
        assert command.returncode == 0, errors
        assert f"Resuming {run}" in errors
        assert f"{run}/model" in output
    finally:
        if command.poll() is None:
            command.kill()
            command.communicate()
    assert list(storage.glob("line-*")) == [run]
    assert state(run)["state"] == "attested"
    assert outcome(run) == outcome(finished)
    assert run_listing.find_unfinished(read_record(run).experiment) is None
