"""Ctrl-C in mid-run: a short line, exit code 130, and nothing half-written that loads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from govray.checkpoint import commit_folder
from govray.train.state import snapshot
from tests.support.deployment import Deployment

pytestmark = pytest.mark.slow


def committing(config: Path, deployment: Deployment) -> subprocess.Popen[str]:
    """A run that has committed. A cluster that the busy machine does not start is tried again."""
    deadline = time.monotonic() + 300
    while True:
        # A process group of its own: a terminal sends Ctrl-C to all of it.
        run = subprocess.Popen(
            [Path(sys.executable).with_name("govray"), "train", config],
            cwd=config.parent,
            env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        while run.poll() is None:
            if list(deployment.folder.glob("runs/tiny-*/checkpoint_0*")):
                return run
            if time.monotonic() > deadline:
                os.killpg(run.pid, signal.SIGKILL)
            time.sleep(0.1)
        _, errors = run.communicate()
        assert "Ray does not start here" in errors, errors


def test_an_interrupted_run_leaves_whole_checkpoints_only(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "here")
    config = tmp_path / "long.yaml"
    config.write_text(
        yaml.safe_dump(
            deployment.experiment(
                max_steps=100_000,
                checkpoint={"every_steps": 20},
                resources={"num_workers": 1, "cpus_per_worker": 0.5},
            )
        )
    )
    run = committing(config, deployment)
    try:
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=120)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 75, errors
    assert "govray runs resume" in errors
    assert "Traceback" not in errors
    [folder] = deployment.folder.glob("runs/tiny-*")
    assert not (folder / "model").exists()
    found = snapshot.latest(folder)
    assert found is not None
    assert f"stopped at step {found[1]} of 100000" in errors
    for whole in folder.glob("checkpoint_" + "[0-9]" * 9):
        commit_folder.load(whole)
