"""``govray workspace``: the parts of an organisation that hold projects."""

from __future__ import annotations

from typing import Annotated

import typer

from govray.cli.output import line, print_table, report, table
from govray.cli.server_option import service

app = typer.Typer(help="Make, list and archive workspaces, which hold projects.")

Name = Annotated[str, typer.Argument(metavar="WORKSPACE")]


@app.command()
def new(
    name: Name,
    description: Annotated[str, typer.Option("--description", help="One line.")] = "",
) -> None:
    """Make a workspace."""
    report(service().projects.make_workspace(name=name, description=description))
    line(f"Made the workspace {name}")


@app.command("ls")
def ls() -> None:
    """List workspaces."""
    rows = list(service().projects.workspaces())
    report({"workspaces": rows})
    grid = table("workspace", "description", "state")
    for row in rows:
        grid.row(row["name"], row["description"], "archived" if row["archived"] else "in use")
    print_table(grid)


@app.command()
def archive(
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False,
) -> None:
    """Archive a workspace, whose projects are archived."""
    report(service().projects.change_workspace(name, archived=not undo))
    line(f"{'Brought back' if undo else 'Archived'} {name}")
