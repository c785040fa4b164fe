"""``govray workspace``: the parts of an organisation that hold projects."""

from __future__ import annotations

from typing import Annotated

import typer

from govray.cli.changer import changer
from govray.cli.output import line, print_table, report, table
from govray.cli.store import DEFAULT_STORE, Store, opened_session

app = typer.Typer(help="Make, list and archive workspaces, which hold projects.")

Name = Annotated[str, typer.Argument(metavar="WORKSPACE")]


@app.command()
def new(
    name: Name,
    description: Annotated[str, typer.Option("--description", help="One line.")] = "",
    store: Store = DEFAULT_STORE,
) -> None:
    """Make a workspace."""
    from govray.platform.store import tenancy

    with opened_session(store) as session:
        tenancy.make_workspace(session, name, description=description, by=changer())
        session.commit()
    report({"workspace": name})
    line(f"Made the workspace {name}")


@app.command("ls")
def ls(store: Store = DEFAULT_STORE) -> None:
    """List workspaces."""
    from sqlmodel import col, select

    from govray.platform.store.tables import Workspace

    with opened_session(store) as session:
        rows = [
            {"workspace": row.name, "description": row.description, "archived": row.archived}
            for row in session.exec(select(Workspace).order_by(col(Workspace.name)))
        ]
    report({"workspaces": rows})
    grid = table("workspace", "description", "state")
    for row in rows:
        state = "archived" if row["archived"] else "in use"
        grid.row(str(row["workspace"]), str(row["description"]), state)
    print_table(grid)


@app.command()
def archive(
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False,
    store: Store = DEFAULT_STORE,
) -> None:
    """Archive a workspace, whose projects are archived."""
    from govray.platform.store import tenancy

    with opened_session(store) as session:
        row = tenancy.get_workspace(session, name)
        tenancy.change_workspace(session, row, archived=not undo, by=changer())
        session.commit()
    report({"workspace": name, "archived": not undo})
    line(f"{'Brought back' if undo else 'Archived'} {name}")
