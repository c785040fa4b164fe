"""The task file: closed, and an error names the field."""

from __future__ import annotations

import pytest

from govray.errors import GovrayError, UsageError
from govray.platform.tasks.task_file import CommandTask, NotebookTask, check_id, read_task


def test_it_reads_what_the_page_shows() -> None:
    task = read_task("kind: notebook\nidle_minutes: 0.5\n", where="f")
    assert isinstance(task, NotebookTask)
    assert task.idle_minutes == 0.5
    command = read_task('kind: command\nargv: [python, "-c", "print(1)"]\n', where="f")
    assert isinstance(command, CommandTask)
    assert command.argv == ("python", "-c", "print(1)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: notbook\n", "kind"),
        ("idle_minutes: 1\n", "kind"),
        ("kind: notebook\nidle_minutes: 0\n", "idle_minutes"),
        ("kind: notebook\nidle_minutes: 1441\n", "idle_minutes"),
        ("kind: notebook\nidle: 5\n", "idle"),
        ("kind: command\nargv: []\n", "argv"),
        ("kind: command\n", "argv"),
        ("kind: tensorboard\nruns: [../../etc]\n", "runs"),
        ("kind: inference\nmodel: m\n", "trust_root"),
        ("- 1\n", "the task"),
        ("kind: shell\nkind: shell\n", "twice"),
    ],
)
def test_what_is_no_task_is_refused(text: str, says: str) -> None:
    with pytest.raises(GovrayError, match=says):
        read_task(text, where="f.yaml")


@pytest.mark.parametrize("id", ["", "..", "a/b", "A", "a.b", "-a", "a-", "a" * 64, "a\n"])
def test_an_id_names_a_folder_and_a_host(id: str) -> None:
    with pytest.raises(UsageError):
        check_id(id)
    assert check_id("s-20261124-090500-0123abcd")
