"""Progress bars on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from govray.cli.output import err
from govray.printable import printable


class StageBar:
    """One long step: a bar, how many of how many, a text, the time. A context manager.

    Meanwhile, what others print to standard output goes to standard error, since standard output is
    for results. Ray, for example, prints when a worker dies.
    """

    def __init__(self, name: str, total: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=err,
            transient=True,
            disable=not err.is_terminal,
        )
        self._task = self._progress.add_task(printable(name), total=total, text="")
        self._others = redirect_stdout(sys.stderr)

    def __enter__(self) -> StageBar:
        self._others.__enter__()
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
        self._others.__exit__(None, None, None)

    def update(self, done: int, total: int, text: str = "") -> None:
        self._progress.update(self._task, completed=done, total=total, text=printable(text))
