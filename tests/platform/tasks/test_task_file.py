"""The task file: closed, and an error names the field."""

from __future__ import annotations

from govray.platform.tasks.task_file import CommandTask, NotebookTask, read_task


def test_it_reads_what_the_page_shows() -> None:
    task = read_task("kind: notebook\nidle_minutes: 0.5\n", where="f")
    assert isinstance(task, NotebookTask)
    assert task.idle_minutes == 0.5
    command = read_task('kind: command\nargv: [python, "-c", "print(1)"]\n', where="f")
    assert isinstance(command, CommandTask)
    assert command.argv == ("python", "-c", "print(1)")
