"""What a service answers as JSON, told as a table or as fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from govray.cli.completion import ids
from govray.cli.option_group import stated_time
from govray.cli.output import field, line, print_table, report, table
from govray.cli.server_option import service
from govray.cli.user_files import write

OfUser = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="Show what this user did.")
]
OfProject = Annotated[
    str | None, typer.Option("--project", metavar="NAME", help="List those of this project.")
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Show what is of this time or later, in UTC."),
]
Before = Annotated[
    str | None,
    typer.Option("--before", metavar="TIME", help="Show what is from before this time, in UTC."),
]
Sort = Annotated[
    str | None,
    typer.Option(
        "--sort", metavar="COLUMN", help="Sort by this field, such as name; -name: backwards."
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show at most this many, the latest.")]
Id = Annotated[
    str, typer.Argument(metavar="ID", help="An id, as ls prints it.", autocompletion=ids)
]
"""Of an experiment or a task."""
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run's id.", autocompletion=ids)]


def between(since: str | None, before: str | None) -> dict[str, str | None]:
    """What a service is asked for `Since` and `Before`."""
    return {
        "since": stated_time(since, "--since"),
        "before": stated_time(before, "--before"),
    }


def tell_rows(
    rows: Iterable[Mapping[str, Any]],
    columns: Mapping[str, str],
    none: str,
    limit: int | None = None,
) -> None:
    """A listing. ``columns``: heading → field; ``none`` is said in the place of an empty table."""
    found = list(islice(rows, limit))
    report(found)
    if not found:
        line(none)
        return
    grid = table(*columns)
    for row in found:
        grid.row(*(_text(row.get(each)) for each in columns.values()))
    print_table(grid)


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


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={_text(each)}" for name, each in value.items())
    return str(value)
