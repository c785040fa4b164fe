"""``govray project``: what runs are counted for, and what may be submitted to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from govray.cli.changer import changer
from govray.cli.output import line, print_table, report, table
from govray.cli.store import DEFAULT_STORE, Store, opened_session
from govray.cli.user_files import read_text

app = typer.Typer(help="Make, list and archive projects, and set their config policies.")

Name = Annotated[str, typer.Argument(metavar="PROJECT")]


@app.command()
def new(
    name: Name,
    workspace: Annotated[
        str, typer.Option("--workspace", metavar="NAME", help="The workspace that holds it.")
    ] = "default",
    description: Annotated[str, typer.Option("--description", help="One line.")] = "",
    store: Store = DEFAULT_STORE,
) -> None:
    """Make a project. Runs that named it before are its own from then on."""
    from govray.platform.store import tenancy

    with opened_session(store) as session:
        tenancy.make_project(
            session, name, workspace=workspace, description=description, by=changer()
        )
        session.commit()
    report({"project": name, "workspace": workspace})
    line(f"Made the project {name} in {workspace}")


@app.command("ls")
def ls(store: Store = DEFAULT_STORE) -> None:
    """List projects."""
    from sqlmodel import col, select

    from govray.platform.store.tables import Project

    with opened_session(store) as session:
        rows = [
            {"project": row.name, "workspace": row.workspace, "archived": row.archived}
            for row in session.exec(select(Project).order_by(col(Project.name)))
        ]
    report({"projects": rows})
    grid = table("project", "workspace", "state")
    for row in rows:
        state = "archived" if row["archived"] else "in use"
        grid.row(str(row["project"]), str(row["workspace"]), state)
    print_table(grid)


@app.command()
def archive(
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False,
    store: Store = DEFAULT_STORE,
) -> None:
    """Archive a project: it takes no submissions, and its runs stay."""
    from govray.platform.store import tenancy

    with opened_session(store) as session:
        row = tenancy.get_project(session, name)
        tenancy.change_project(session, row, archived=not undo, by=changer())
        session.commit()
    report({"project": name, "archived": not undo})
    line(f"{'Brought back' if undo else 'Archived'} {name}")


@app.command()
def settings(
    name: Name,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The config policy that it gets, as YAML."),
    ] = None,
    store: Store = DEFAULT_STORE,
) -> None:
    """Show a project's config policy, or replace it by a file's."""
    from govray.governance.submission.yaml_overrides import read_mapping, written
    from govray.platform.store import tenancy
    from govray.platform.store.project_settings import parse_settings

    with opened_session(store) as session:
        row = tenancy.get_project(session, name)
        if file is not None:
            value = read_mapping(read_text(file), name=str(file))
            stored = parse_settings(value, where=str(file)).stored()
            tenancy.change_project(session, row, settings=stored, by=changer())
            session.commit()
        found = dict(row.settings)
    report({"project": name, "settings": found})
    text = written(found).rstrip() if found else "No limits: everything may be submitted."
    for each in text.split("\n"):
        line(each)
