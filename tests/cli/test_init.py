"""`init`: the deployment, whole, into an empty place; and what the wheel carries of it."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

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


def test_what_to_type_next_is_quoted_for_a_shell(run: Run, tmp_path: Path) -> None:
    assert "Next  cd 'my house'\n" in run("init", "my house").out
    (tmp_path / "notes.txt").write_text("a note")
    stated = ("--license", "MIT", "--issuer", "a", "--jurisdiction", "DE", "--out", "my data")
    said = run("corpus", "build", "notes.txt", "--name", "notes", *stated).out
    assert "govray sign 'my data/notes/credential.yaml' --key KEY" in said


def test_an_existing_empty_folder_is_filled(run: Run, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    run("init", "here")
    assert (tmp_path / "here" / "cluster.yaml").is_file()


def test_it_writes_over_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    assert "not empty" in run("init", "taken", code=2).err
    assert files_below(tmp_path / "taken") == {"mine"}
    (tmp_path / "file").write_text("mine")
    assert "this is a file" in run("init", "file", code=2).err
    assert "/dev/null" in run("init", "/dev/null/x", code=2).err


def test_a_copy_that_fails_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path, **_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    assert "no space left" in run("init", "deployment", code=2).err.lower()
    assert not (tmp_path / "deployment").exists()


def test_an_installation_without_a_deployment_could_not(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init.govray, "__file__", str(tmp_path / "site-packages/govray/x.py"))
    assert "carries no deployment" in run("init", "deployment", code=3).err


def test_the_wheel_s_mapping_is_the_list_of_parts() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())
    mapping = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    present = {name for name in init.PARTS if (TREE / name).exists()}
    assert mapping == {name: f"govray/deployment/{name}" for name in present}
    assert set(init.PURPOSE) == set(init.PARTS)
