"""A run that is interrupted, and whose driver dies, and the same command given again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import ray.train
import torch
import yaml

from govray import cli
from govray.engine.model.gpt import GPT
from govray.governance.attestation import model_folder
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.inputs import run_listing
from govray.train.inputs.run_record import read_record
from govray.train.run_folder.ledger_wal import recorded_steps
from govray.train.state import snapshot
from govray.train.state.optimizer_start import load_optimizer
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked

pytestmark = [pytest.mark.story, pytest.mark.usefixtures("cluster")]

COMPARED = (model_folder.WEIGHTS, "optimizer.safetensors", "optimizer.json", snapshot.LEDGER)


def outcome(run: Path) -> dict[str, bytes]:
    """Everything that a run ends with, of its last commit."""
    found = snapshot.latest(run)
    assert found is not None
    files = commit_folder.load(found[0]).files
    adapters = [name for name in files if name.endswith(model_folder.ADAPTER_WEIGHTS)]
    return {name: files[name] for name in (*COMPARED, *adapters)}


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

    def start(command: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [command, "train", config],
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

    command = start(forked.command)  # a process of its own, which a terminal interrupts
    try:
        run = wait(command, 2)
        assert state(run)["state"] == "running"
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=240)
        assert command.returncode == 75, errors
        stopped = state(run)
        assert stopped["state"] == "stopped"
        assert f"stopped at step {stopped['step']} of 12" in errors
        assert "govray runs resume" in errors
        assert "Traceback" not in errors
        assert snapshot.latest(run)[1] == stopped["step"]

        command = start(forked.govray)
        wait(command, stopped["step"] + 2)
        command.send_signal(signal.SIGKILL)
        command.communicate(timeout=240)
        assert state(run)["state"] == "interrupted"

        command = start(forked.govray)
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


def test_the_command_starts_a_sharded_run_with_the_optimizer_of_a_sharded_run(
    deployment: Deployment, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"aggregator": "fsdp2", "checkpoint": {"every_steps": 50}}
    runs: list[Path] = []
    for name, steps in ("kept", 3), ("taken", 2):
        config = tmp_path / f"{name}.yaml"
        value = deployment.experiment(name=name, max_steps=steps, **given)
        config.write_text(yaml.safe_dump(value))
        assert cli.main(["train", str(config)]) == 0
        runs += (deployment.folder / "runs").glob(f"{name}-*")
        given |= {"pretrained": str(runs[0] / "model"), "pretrained_optimizer": str(runs[0])}
    kept, taken = ({**states(run)} for run in runs)
    base = {name for name in kept if "acme" not in name}
    assert {int(taken[name]) for name in base if name.startswith("step/")} == {5}
    record = read_record(runs[1])
    assert record.start
    assert record.start.optimizer
    network = GPT(vocabulary=257, **deployment.experiment()["hyperparameters"])  # type: ignore[dict-item]
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.95))
    load_optimizer(network, optimizer, record.start.optimizer)  # joined in one process
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state[parameter].items():
            assert torch.equal(value, kept[f"{key}/{name}"]), f"{key}/{name}"


def states(run: Path) -> dict[str, torch.Tensor]:
    found = snapshot.latest(run)
    assert found is not None
    return tensors_of(commit_folder.open_commit(found[0]), "optimizer.safetensors")
