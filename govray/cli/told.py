"""What a service answers as JSON, told as a table or as fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Annotated, Any

import typer

from govray.cli.completion import ids
from govray.cli.output import field, line, print_table, report, table
from govray.cli.server_option import service
from govray.cli.user_files import write

Id = Annotated[
    str, typer.Argument(metavar="ID", help="An id, as ls prints it.", autocompletion=ids)
]
"""Of an experiment or a task."""
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run's id.", autocompletion=ids)]


def tell_rows(
    rows: Iterable[Any],
    columns: str,
    none: str | None = None,
    *,
    limit: int | None = None,
    right: tuple[str, ...] = (),
    blank: str = "-",
    cells: Mapping[str, Callable[[dict[str, Any]], str]] = MappingProxyType({}),
) -> None:
    """Print a listing of objects or documents, as `govray.platform.wire.operations.Listed` has it.
    ``none`` is said in the place of an empty table."""
    found = [
        each if isinstance(each, dict) else each.model_dump(by_alias=True)
        for each in islice(rows, limit)
    ]
    report(found)
    if not found and none is not None:
        line(none)
        return
    said = dict(each.partition(": ")[::2] for each in columns.split(", "))
    grid = table(*said, right=right)
    for row in found:
        shown = {heading: _cell(row, of or heading, blank) for heading, of in said.items()}
        shown |= {heading: cell(row) for heading, cell in cells.items()}
        grid.row(*shown.values())
    print_table(grid)


def _cell(row: Mapping[str, Any], said: str, blank: str) -> str:
    """A field of a row, or a text with ``{fields}`` in braces if none of them is None."""
    if "{" not in said:
        return _text(row.get(said), blank)
    named = (name.partition("[")[0] for _, name, _, _ in Formatter().parse(said) if name)
    return blank if any(row[each] is None for each in named) else said.format_map(row)


def tell_fields(title: str, value: Mapping[str, Any]) -> None:
    """One thing, each of its fields that says something."""
    report(value)
    line(title)
    for name, each in value.items():
        if each not in (None, [], {}, ""):
            field(name, _text(each))


def save(data: bytes, out: Path, **more: str) -> None:
    """Write a file that a service has to the new file ``out``. ``more``: what it is, for --json."""
    write(out, data, replace=False)
    report({**more, "file": str(out), "bytes": len(data)})
    line(f"Wrote {out}  ({len(data)} bytes)")


def acts(app: typer.Typer, of: str, tell: Callable[[Any], None]) -> None:
    """Give ``app`` the verbs that ask something of one of the service's ``of``; ``tell`` says what
    became of it."""

    def add(verb: str, says: str) -> None:
        @app.command(verb, help=says)
        def act(id: Id) -> None:
            tell(getattr(getattr(service(), of), verb)(id))

    add("stop", "Stop one: what waits leaves the queue, what runs is told to end.")
    add("kill", "End one at once; steps since its last checkpoint are lost.")
    add("resume", "Put back into the queue what was stopped, killed or failed.")

    @app.command("archive")
    def archive(
        id: Id,
        undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False,
    ) -> None:
        """Take what has ended out of the list. Nothing is deleted."""
        known = getattr(service(), of)
        tell(known.unarchive(id) if undo else known.archive(id))


def _text(value: Any, blank: str = "-") -> str:
    if value is None:
        return blank
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={_text(each)}" for name, each in value.items())
    return str(value)
