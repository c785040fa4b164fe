"""Commands: their output is kept, their code is handed on, and they end when told to."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event, Timer

import pytest

from govray.errors import Stopped, UsageError
from govray.platform.tasks.finite_task import run_command
from govray.platform.tasks.jupyter import without_secrets
from govray.platform.tasks.kept_files import OUTPUT
from govray.platform.tasks.task_file import CommandTask, NotebookTask, read_task


def output(storage: Path) -> str:
    return (storage / "tasks/s-1/files" / OUTPUT).read_text()


def test_output_and_code_are_the_programs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import os, sys; print('\\033[31mhi', 6 * 7); "
        "open(os.environ['GOVRAY_TASK_FILES'] + '/x', 'w').write('y'); sys.exit(3)"
    )
    words = (sys.executable, "-c", code)
    assert run_command(words, id="s-1", storage=tmp_path, stop=Event()) == 3
    assert output(tmp_path) == "\033[31mhi 42\n"
    assert (tmp_path / "tasks/s-1/files/x").read_text() == "y"
    assert "\033" not in capfd.readouterr().out  # a log shows it as it is
    with pytest.raises(UsageError, match="cannot be started"):
        run_command(("/no/such",), id="s-1", storage=tmp_path, stop=Event())


def test_a_command_gets_no_private_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOVRAY_KEY", "hunter2")
    monkeypatch.setenv("OTHER", "stays")
    words = (sys.executable, "-c", "import os; print([*os.environ.values()])")
    run_command(words, id="s-1", storage=tmp_path, stop=Event())
    assert "hunter2" not in output(tmp_path)
    assert "stays" in output(tmp_path)  # the control


def test_it_ends_when_told_to(tmp_path: Path) -> None:
    stop = Event()
    Timer(0.5, stop.set).start()
    words = (sys.executable, "-c", "import time; print('on', flush=True); time.sleep(60)")
    with pytest.raises(Stopped):
        run_command(words, id="s-1", storage=tmp_path, stop=stop)


def test_a_notebook_gets_no_private_key() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nx"
    kept = without_secrets({"GOVRAY_KEY": "x", "MINE": key, "AWS_REGION": "eu", "HOME": "/"})
    assert kept == {"AWS_REGION": "eu", "HOME": "/"}


def test_it_reads_what_the_page_shows() -> None:
    task = read_task("kind: notebook\nidle_minutes: 0.5\n", where="f")
    assert isinstance(task, NotebookTask)
    assert task.idle_minutes == 0.5
    command = read_task('kind: command\nargv: [python, "-c", "print(1)"]\n', where="f")
    assert isinstance(command, CommandTask)
    assert command.argv == ("python", "-c", "print(1)")
