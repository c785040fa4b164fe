"""What verbs print with, and the options that many of them share.

Results go to standard output: either text for a person or, with ``--json``, one
JSON document. Progress and errors go to standard error.

Names and file contents are printed as they are: no markup is read in them, and
control characters, which a terminal would obey, are replaced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Key = Annotated[
    str,
    typer.Option("--key", metavar="KEY", help="The signing key: a PEM file, or env:NAME."),
]
TrustRoot = Annotated[
    Path | None,
    typer.Option(
        "--trust-root", metavar="FILE", help="The root that you trust. Default: the pinned one."
    ),
]
Delegations = Annotated[
    list[Path] | None,
    typer.Option("--delegation", metavar="FILE", help="A delegation of the root's. Repeatable."),
]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Check as of YYYY-MM-DDTHH:MM:SSZ. Default: now."),
]

# Where verbs that sign look for a key if none is given.
DEFAULT_KEY = "env:GOVRAY_KEY"

out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
err = Console(highlight=False, markup=False, emoji=False, stderr=True)


def print_json(value: Any) -> None:
    """Write ``value`` to standard output as one document, one final newline."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def line(text: str = "", style: str | None = None) -> None:
    """Write one line of text to standard output."""
    out.print(Text(printable(text), style=style or ""))


def field(name: str, value: object) -> None:
    """Write one indented ``name  value`` line, the form of every summary."""
    out.print(Text.assemble("  ", (f"{name:<9}  ", "dim"), printable(str(value))))


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An unboxed table; the columns named in ``right`` hold numbers."""
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        grid.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return grid


def printable(text: str) -> str:
    """``text`` with control and bidirectional characters made visible as ``\\uXXXX``."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )
