"""What verbs print with, progress bars included, and the options that many of them share.

A verb gives its result twice: as one value to `report`, and as text to `line`, `field` and
`print_table`. With ``--json`` the value is printed, otherwise the text; only `results` and
`report` know which. Both go to standard output, progress and errors to standard error.

No markup is read in what is printed, and all of it goes through `govray.printable`: what a
terminal would obey is shown instead. Verbs print by the functions here and by nothing else.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from govray.cli.option_group import Given, given_place
from govray.printable import json_text, lines, printable

SAID_AFTER_S = 15.0

Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Key = Annotated[
    str,
    typer.Option(
        "--key",
        metavar="KEY",
        help="The signing key: a PEM file, env:NAME, pkcs11:URI or command:PROGRAM.",
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="A file whose first line is the key's password. Default: ask at the terminal.",
    ),
]
TrustRoot = Annotated[
    Path | None,
    typer.Option(
        "--trust-root", metavar="FILE", help="The root that you trust. Default: the pinned one."
    ),
]
RevocationLists = Annotated[
    list[Path] | None,
    typer.Option(
        "--revocations",
        metavar="FILE",
        help="A signed revocation list, or a folder of them. Repeatable. Pinned ones count too.",
    ),
]
Delegations = Annotated[
    list[Path] | None,
    typer.Option(
        "--delegation", metavar="FILE", help="A delegation that the trust root signed. Repeatable."
    ),
]
Records = Annotated[
    Given | None,
    typer.Option(
        "--records",
        metavar="DIR",
        parser=given_place,
        help="The prepared folder that the model's run read, or the folder of all; also by URL.",
    ),
]
AllowUncovered = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-uncovered",
        metavar="GLOB",
        help="Accept these files although no digest covers them and a loader may load them. "
        "Repeatable.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a field of the file; +PATH=VALUE adds one. Repeatable.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Check as of YYYY-MM-DD, or YYYY-MM-DDTHH:MM:SSZ. Default: now.",
    ),
]

LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--log-format", help="text, or json: an object a line, on stderr."),
]

# Where verbs that sign look for a key if none is given.
DEFAULT_KEY = "env:GOVRAY_KEY"


class PipedConsole(Console):
    """A console that lets `govray.cli.main` say that the reader of the output went away."""

    def on_broken_pipe(self) -> None:
        """Go on with the error. rich would exit with 1, which means that a check failed."""
        raise BrokenPipeError


out = PipedConsole(highlight=False, markup=False, emoji=False, soft_wrap=True)
err = PipedConsole(highlight=False, markup=False, emoji=False, stderr=True)


@contextmanager
def results(*, as_json: bool) -> Iterator[None]:
    """Meanwhile, results are printed as JSON or as text."""
    out.quiet = as_json
    try:
        yield
    finally:
        out.quiet = False


def report(value: Any) -> None:
    """Print the result ``value`` as one JSON document, if that was asked for."""
    if out.quiet:
        print_json(value)


def print_json(value: Any) -> None:
    """Write ``value`` to standard output as one document, one final newline."""
    typer.echo(json_text(value, indent=2))


def line(text: str = "", style: str | None = None) -> None:
    out.print(Text(printable(text), style=style or ""))


def note(text: str) -> None:
    """Write one line about progress to standard error."""
    err.print(Text(printable(text)), soft_wrap=True)


def agreed(question: str) -> bool:
    """Ask at the terminal, where Return means yes. Without a terminal, the answer is no."""
    if not (sys.stdin.isatty() and err.is_terminal):
        return False
    err.print(Text(f"{printable(question)} [Y/n] "), end="", soft_wrap=True)
    return sys.stdin.readline().lower() in ("\n", "y\n", "yes\n")


class _LogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return lines(super().format(record))


def filter_log() -> None:
    """Make log records printable that no handler takes and Python writes to standard error."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_LogFormatter())


def field(name: str, value: object) -> None:
    """Write one indented ``name  value`` line, the form of every summary."""
    out.print(Text.assemble("  ", (f"{name:<9}  ", "dim"), printable(str(value))))


class TextGrid:
    """An unboxed table whose cells are plain text.

    Args:
        columns: Their names.
        right: Those of them that hold numbers.
        whole: Those of them that a terminal does not fold, since people copy them.
    """

    def __init__(
        self, columns: Sequence[str], right: Collection[str], whole: Collection[str]
    ) -> None:
        self._rows = [[printable(column) for column in columns]]
        self._right = [column in right for column in columns]
        self._whole = [column in whole for column in columns]

    def row(self, *cells: str) -> None:
        if not out.quiet:
            self._rows.append([printable(cell) for cell in cells])

    def folded(self) -> Table:
        """As a terminal shows it, whose width it does not exceed."""
        first, *rest = self._rows
        grid = Table(box=None, pad_edge=False, header_style="dim")
        for name, right, whole in zip(first, self._right, self._whole, strict=True):
            justify: Literal["left", "right"] = "right" if right else "left"
            grid.add_column(Text(name), justify=justify, overflow="fold", no_wrap=whole)
        for cells in rest:
            grid.add_row(*map(Text, cells))
        return grid

    def lines(self) -> Iterator[str]:
        """Each row as one line, columns below each other."""
        widths = [max(map(cell_len, column)) for column in zip(*self._rows, strict=True)]
        for cells in self._rows:
            yield "  ".join(
                " " * (width - cell_len(cell)) + cell
                if right
                else cell + " " * (width - cell_len(cell))
                for cell, width, right in zip(cells, widths, self._right, strict=True)
            )


def in_bytes(count: int) -> str:
    """``count`` in the largest decimal unit that leaves a number of at least one."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> TextGrid:
    """A table, as `TextGrid` is."""
    return TextGrid(columns, right, whole)


def print_table(grid: TextGrid) -> None:
    """Write a table to standard output; in a file or pipe, each row is one line."""
    if out.quiet:
        return
    if out.file.isatty():
        out.print(grid.folded())
    else:
        typer.echo("\n".join(grid.lines()), file=out.file)


class StageBar:
    """One long step: a bar, how many of how many, a text, the time. A context manager.

    Without a terminal it is a line after `SAID_AFTER_S`, and then others, each twice as much later.

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
        self._name = name.strip()
        self._due, self._later = time.monotonic() + SAID_AFTER_S, SAID_AFTER_S
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
        if self._progress.disable and time.monotonic() >= self._due:
            self._later *= 2
            self._due = time.monotonic() + self._later
            note(f"{self._name}  {done:,} of {total:,}  {text}".rstrip())
