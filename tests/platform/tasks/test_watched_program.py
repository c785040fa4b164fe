"""Who ends a program that nobody uses, and what its end says. Real ones are in a story."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

import pytest

from govray.platform.tasks import watched_program
from govray.platform.tasks.jupyter import jupyter_program
from govray.platform.tasks.kept_files import KeptFiles
from govray.platform.tasks.task_file import read_task
from govray.platform.tasks.watched_program import JupyterServer


class Used(JupyterServer):
    """A server that somebody uses all the time."""

    def idle(self, now: datetime) -> timedelta:
        return timedelta()


@pytest.mark.parametrize(("code", "why"), [(0, "idle"), (1, "failed"), (-9, "failed")])
def test_a_program_that_ends_with_0_was_ended_and_is_not_started_again(
    tmp_path: Path, code: int, why: str
) -> None:
    """Jupyter's own timer ends it so, and who shuts it down from within."""
    ends = f"import os; os.kill(os.getpid(), {-code}) if {code} < 0 else exit({code})"
    with subprocess.Popen([sys.executable, "-c", ends]) as process:
        found = watched_program._watch(
            process,
            Used(address="http://127.0.0.1:1", base="/", token="t"),
            timedelta(seconds=1),
            KeptFiles(tmp_path / "kept", tmp_path, print),
            Event(),
        )
    assert found == why


@pytest.mark.parametrize("kind", ["notebook", "shell", "tensorboard"])
def test_who_watches_a_program_sees_that_it_is_idle_before_its_own_timer_ends_it(
    tmp_path: Path, kind: str
) -> None:
    task = read_task(f"kind: {kind}\nidle_minutes: 30\n", where="f")
    folder = {"storage": tmp_path, "work": tmp_path, "private": tmp_path}
    program = jupyter_program(task, id="s-1", **folder, listen="127.0.0.1", token="t")
    file = json.loads(program.files["jupyter_server_config.json"])
    # It looks once a minute, and who watches four times.
    assert file["ServerApp"]["shutdown_no_activity_timeout"] >= 30 * 60 + 120
