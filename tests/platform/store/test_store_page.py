"""docs/service.md on the store: its commands, run one after the other, do what it says."""

from __future__ import annotations

import re
import shlex
import threading
from pathlib import Path

import pytest

from govray.cli import main
from govray.cli.store import opened_session
from govray.platform.store import registry
from govray.platform.store.usage import usage
from tests.support.page_commands import part
from tests.support.runs_on_storage import at, begin_run, finished_run
from tests.support.world import World

PAGE = part("docs/service.md", "The store")
COMMANDS = re.findall(r"^govray .*$", "\n".join(re.findall(r"```\n(.*?)```", PAGE, re.S)), re.M)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.chdir(tmp_path)
    for name in ("GOVRAY_STORE", "GOVRAY_STORE_KEY"):
        monkeypatch.delenv(name, raising=False)
    Path("root.json").write_bytes(world.root)
    finished_run(Path("runs").absolute(), "tiny-1", world)
    return world


def test_the_commands_of_the_page(here: World, capsys: pytest.CaptureFixture[str]) -> None:
    def said_by(command: str) -> str:
        assert main(shlex.split(command)[1:]) == 0, capsys.readouterr()
        return capsys.readouterr().out

    upgraded, indexed, rebuilt = map(said_by, COMMANDS)
    assert "revision" in upgraded
    assert "1 runs, 1 models new" in indexed
    assert "1 runs, 1 models new" in rebuilt
    assert {path.name for path in Path().glob("govray.db*")} >= {"govray.db", "govray.db.key"}
    assert not list(Path().glob("*.rebuild"))


def test_a_model_registered_from_elsewhere_outlives_a_rebuild(
    here: World, capsys: pytest.CaptureFixture[str]
) -> None:
    other = here.deploy(Path("elsewhere").absolute(), run="other")
    root = ("--trust-root", "root.json")
    version = ("--name", "cat", "--version", "1.0.0")
    assert main(["store", "index", "runs", *root]) == 0
    assert main(["model", "register", str(other), *version, *root]) == 0
    capsys.readouterr()
    assert main(["store", "rebuild", "runs", *root]) == 0, capsys.readouterr()
    assert "2 models new" in capsys.readouterr().out
    other.rename("gone")
    assert main(["store", "rebuild", "runs", *root]) == 1
    assert "cat 1.0.0" in capsys.readouterr().err
    with opened_session("sqlite:///govray.db") as session:
        assert [each.version for each in registry.versions(session, "cat")] == ["1.0.0"]


def test_following_sees_what_comes(
    here: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    class Pause(threading.Event):
        """Between two looks: something happens, then Ctrl-C."""

        def wait(self, timeout: float | None = None) -> bool:
            nonlocal looks
            looks += 1
            if looks == 2:
                raise KeyboardInterrupt
            begin_run(Path("runs").absolute(), "tiny-2", here, finished=at(9))
            return False

    monkeypatch.setattr("threading.Event", Pause)
    assert main(["store", "index", "runs", "--trust-root", "root.json", "--follow"]) == 130
    capsys.readouterr()
    with opened_session("sqlite:///govray.db") as session:
        [used] = usage(session, at=at(9))
    assert used.runs == 2
