"""``govray task``: notebooks, shells and programs on the cluster, through a service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from govray.cli.output import field, line, report
from govray.cli.server_option import service
from govray.cli.told import tell_fields, tell_rows
from govray.cli.user_files import read_text

app = typer.Typer(help="Submit, list and open notebooks, shells and programs on the cluster.")

TaskId = Annotated[str, typer.Argument(metavar="ID", help="A task's id, from ls.")]


@app.command()
def ls(
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Of this user.")
    ] = None,
) -> None:
    """List the tasks that you may see, the newest first."""
    columns = {name: name for name in ("id", "kind", "name", "project", "user", "state", "why")}
    tell_rows(service().tasks.list(user=user), columns, "No task is there that you may see")


@app.command()
def show(id: TaskId) -> None:
    """Show one: its kind, its state and why. `govray task stop ID` ends it."""
    found = service().tasks.get(id)
    tell_fields(f"{id}  {found['state']}", found)


def _acts(verb: str, says: str) -> None:
    @app.command(verb, help=says)
    def act(id: TaskId) -> None:
        done = getattr(service().tasks, verb)(id)
        tell_fields(f"{id}  {done['state']}", done)


_acts("stop", "End one: it leaves the queue, or its program is told to stop.")
_acts("kill", "End one at once.")
_acts("resume", "Put back into the queue what was stopped, killed or failed.")


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As jobs/notebook.yaml.")],
    name: Annotated[str, typer.Option("--name", metavar="WORD", help="What to call it.")],
    project: Annotated[
        str, typer.Option("--project", metavar="NAME", help="What it counts for.")
    ] = "default",
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="Where it runs.")
    ] = None,
) -> None:
    """Submit a task file: it waits in the queue, as a run does."""
    made = service().tasks.submit(name=name, config=read_text(file), project=project, pool=pool)
    tell_fields(f"{made['id']}  {made['state']}", made)


@app.command("open")
def open_task(id: TaskId) -> None:
    """Get an address that shows a task in a browser, good once and for a minute."""
    found = service().tasks.open(id)
    report(found)
    line(found["url"])
    field("good", f"once, for {found['seconds']} seconds")
