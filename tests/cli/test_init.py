"""`init`: the deployment, whole, into an empty place; and what the wheel carries of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from govray.cli import init
from tests.support.command import Run

TREE = init.deployment()


def files_below(folder: Path) -> set[str]:
    found = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(folder).as_posix() for p in found}


def test_it_copies_every_part_that_exists(run: Run, tmp_path: Path) -> None:
    told = run("init", "deployment", "--json").json
    assert told["copied"] == [name for name in init.PARTS if (TREE / name).exists()]
    expected = {
        name if (TREE / name).is_file() else f"{name}/{below}"
        for name in told["copied"]
        for below in ([""] if (TREE / name).is_file() else files_below(TREE / name))
    }
    assert files_below(tmp_path / "deployment") == expected | {*init.IGNORES}
    assert "govray.db\n" in (tmp_path / "deployment" / ".rayignore").read_text()
    assert (tmp_path / "deployment" / "cluster.yaml").read_bytes() == (
        TREE / "cluster.yaml"
    ).read_bytes()


def test_runs_lie_in_the_folder_wherever_a_job_begins(run: Run, tmp_path: Path) -> None:
    run("init", "a deployment")
    for name in ("train", "tune"):
        told = yaml.safe_load((tmp_path / "a deployment" / "jobs" / f"{name}.yaml").read_bytes())
        assert told["storage_path"] == str(tmp_path / "a deployment" / "runs")


def test_no_private_key_is_in_it(run: Run, tmp_path: Path) -> None:
    run("init", "deployment")
    for path in (tmp_path / "deployment").rglob("*"):
        if path.is_file():
            assert b"PRIVATE KEY" not in path.read_bytes()


def test_its_next_steps_work(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run("init", "deployment").out
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "deployment")
    steps = [line.strip() for line in out.splitlines() if line.strip().startswith("govray ")]
    assert len(steps) == 3
    for step in steps:
        words = [word.replace("~", str(tmp_path)) for word in step.split()[1:]]
        run(*words)
    assert (tmp_path / "deployment" / "policies" / "licences.dsse.json").is_file()


def test_it_writes_over_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    assert "not empty" in run("init", "taken", code=2).err
    assert files_below(tmp_path / "taken") == {"mine"}
    (tmp_path / "file").write_text("mine")
    assert "this is a file" in run("init", "file", code=2).err
    assert "/dev/null" in run("init", "/dev/null/x", code=2).err
