"""``govray task``: notebooks, shells and programs on the cluster, through a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli.listing_verbs import add_listings
from govray.cli.output import field, line, report
from govray.cli.server_option import service
from govray.cli.told import Id, acts, save, tell_fields, tell_rows
from govray.cli.user_files import read_text
from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.platform.wire.answers import Task

app = typer.Typer(help="Submit, list and open notebooks, shells and programs on the cluster.")


add_listings(app, "task")


@app.command()
def show(id: Id) -> None:
    """Show one: its kind, its state and why. `govray task stop ID` ends it."""
    tell(service().tasks.get(id))


def tell(row: Task) -> None:
    tell_fields(f"{row.id}  {row.state}", row.model_dump(by_alias=True))


acts(app, "tasks", tell)


@app.command()
def submit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The task's file, such as jobs/notebook.yaml.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="WORD", help="The task's name.")],
    project: Annotated[
        str, typer.Option("--project", metavar="NAME", help="The project that it counts for.")
    ] = "default",
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="The pool that it runs in.")
    ] = None,
) -> None:
    """Submit a task file: it waits in the queue, as a run does."""
    tell(service().tasks.submit(name=name, config=read_text(file), project=project, pool=pool))


@app.command()
def files(
    id: Id,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One file's name. Default: list all.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The file to write it to.")
    ] = None,
) -> None:
    """List what a task keeps, such as output.log, or write one of its files to FILE."""
    tasks = service().tasks
    if (name is None) != (out is None):
        raise UsageError("a NAME needs --out, and --out a NAME", where="task files")
    if name is None or out is None:
        tell_rows(tasks.files(id)["items"], "file: name, bytes", "The task keeps nothing yet")
        return
    save(tasks.file(id, name), out)


@app.command("open")
def open_task(id: Id) -> None:
    """Get an address that shows a task in a browser, good once and for a minute."""
    found = service().tasks.open(id)
    report(found)
    line(found["url"])
    field("good", f"once, for {found['seconds']} seconds")
