"""What `govray train` says of a run's size and time, through the command. One rank, no Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from govray.cli import main, output
from govray.train.driver import progress
from tests.support.command import Done
from tests.support.deployment import Deployment
from tests.support.solo import run_here


def test_the_size_stands_before_the_first_step_and_in_the_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    monkeypatch.setattr(progress, "LEAST_S", 0.0)
    monkeypatch.setattr(output, "SAID_AFTER_S", 0.0)
    here = Deployment(tmp_path / "here")
    file = tmp_path / "train.yaml"
    value = here.experiment(resources={"num_workers": 1}, precision="bf16")
    file.write_text(yaml.safe_dump(value))
    code = main(["--json", "train", str(file)])
    done = Done(code, *capsys.readouterr())
    assert code == 0, done.err
    size = done.json["size"]
    # Two blocks of width 32, bytes as tokens; an adapter of rank 4. Two bytes a weight.
    assert size["bytesPerRank"]["weights"] == 2 * size["parameters"]
    assert size["bytesPerRank"]["optimizer"] == 2 * size["bytesPerRank"]["gradients"]
    assert size["tokens"] == 12 * 7 * 32
    told = done.err.splitlines()
    assert told[0] == f"start  {value['name']}: Ray first, then the data"
    [model] = [line for line in told if line.startswith("model  ")]
    first, *_ = [line for line in told if line.endswith(" left")]
    assert told.index(model) < told.index(first)
    assert "k parameters" in model
    assert f"FLOPs ({size['flopRatio']:.2f} of ungoverned)" in model
    assert first.startswith(f"{value['name']}  2 of 12  loss ")
