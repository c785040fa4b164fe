"""`init`: the deployment, whole, into an empty place; and what the wheel carries of it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import yaml

from govray.cli import init, output
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


KEYS = ("--keys", "~/govray-keys")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("keys", [(), KEYS])
def test_its_next_steps_work(
    run: Run, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    out = run("init", "deployment", *keys).out
    monkeypatch.chdir(tmp_path / "deployment")
    steps = [line.strip() for line in out.splitlines() if line.strip().startswith("govray ")]
    assert len(steps) == 3
    for step in steps:
        words = [word.replace("~", str(home)) for word in step.split()[1:]]
        run(*words)
    assert (tmp_path / "deployment" / "policies" / "licences.dsse.json").is_file()


def test_one_person_s_root_is_relied_on_and_the_keys_serve_a_second_folder(
    run: Run, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init", "my house", *KEYS)
    held = {path.name: path.read_bytes() for path in (home / "govray-keys").glob("*.pem")}
    assert held.keys() == {f"{party}.pem" for party in init.PARTIES}
    monkeypatch.chdir(tmp_path / "my house")
    said = {each["check"]: each for each in run("doctor", "--json").json["findings"]}
    assert (said["trust"]["state"], said["trust"]["what"].split(",")[0]) == (
        "ok", "policies/root.json: my-house v1",
    )  # fmt: skip
    run("init", str(tmp_path / "second"), *KEYS)
    assert {path.name: path.read_bytes() for path in (home / "govray-keys").glob("*.pem")} == held
    Path("policies/root.json").write_bytes(Path("policies/root.json").read_bytes()[:-9])
    assert re.search("^WRONG +trust", run("doctor", code=1).out, re.M)


def test_no_key_comes_into_the_folder_or_a_working_tree(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    for keys, said in (("dep/keys", "jobs are sent from"), ("tree/keys", "git working tree")):
        assert said in run("init", "dep", "--keys", keys, code=2).err
        assert not (tmp_path / "dep").exists()
        assert not (tmp_path / keys).exists()


@pytest.mark.parametrize(
    ("answer", "made"), [("\n", True), ("y\n", True), ("no\n", False), ("", False)]
)
def test_a_terminal_is_asked_one_question(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch, answer: str, made: bool
) -> None:
    typed = io.StringIO(answer)
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", typed)
    monkeypatch.setattr(output.err, "_force_terminal", True)
    assert "Makes keys in ~/govray-keys" in run("init", "deployment").err
    assert (home / "govray-keys").exists() is made


def test_it_writes_over_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    assert "not empty" in run("init", "taken", code=2).err
    assert files_below(tmp_path / "taken") == {"mine"}
    (tmp_path / "file").write_text("mine")
    assert "this is a file" in run("init", "file", code=2).err
    assert "/dev/null" in run("init", "/dev/null/x", code=2).err
