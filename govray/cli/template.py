"""``govray template``: experiment files of a project that others start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from govray.cli.changer import changer
from govray.cli.output import line, print_table, report, table
from govray.cli.store import DEFAULT_STORE, Store, opened_session
from govray.cli.user_files import read_text

app = typer.Typer(help="Keep experiment files of a project that others start from.")

Project = Annotated[str, typer.Argument(metavar="PROJECT")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The template's name.")]


@app.command()
def put(
    project: Project,
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.")],
    store: Store = DEFAULT_STORE,
) -> None:
    """Make a template of an experiment file, or replace it."""
    from govray.platform.store import project_templates, tenancy

    text = read_text(file)
    with opened_session(store) as session:
        row = tenancy.get_project(session, project)
        project_templates.put(session, row, name, text, by=changer())
        session.commit()
    report({"project": project, "template": name})
    line(f"{project} has the template {name}")


@app.command("ls")
def ls(project: Project, store: Store = DEFAULT_STORE) -> None:
    """List a project's templates."""
    from sqlmodel import col, select

    from govray.platform.store import tenancy
    from govray.platform.store.tables import Template

    with opened_session(store) as session:
        tenancy.get_project(session, project)
        found = select(Template).where(Template.project == project).order_by(col(Template.name))
        rows = [(row.name, row.changed, row.user) for row in session.exec(found)]
    report({"templates": [{"template": n, "changed": at, "user": user} for n, at, user in rows]})
    if not rows:
        line("No templates yet. Store one: govray template put PROJECT NAME FILE")
        return
    grid = table("template", "changed", "by")
    for row in rows:
        grid.row(*row)
    print_table(grid)


@app.command()
def fill(
    project: Project,
    name: Name,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="Change a value; +PATH=VALUE adds one. Repeatable."
        ),
    ] = None,
    store: Store = DEFAULT_STORE,
) -> None:
    """Print the experiment file that a template makes, with overrides."""
    from govray.platform.store import project_templates

    with opened_session(store) as session:
        row = project_templates.get(session, project, name)
        text = project_templates.filled(row, override or ())
    report({"project": project, "template": name, "text": text})
    line(text.rstrip("\n"))


@app.command()
def drop(project: Project, name: Name, store: Store = DEFAULT_STORE) -> None:
    """Delete a template."""
    from govray.platform.store import project_templates

    with opened_session(store) as session:
        project_templates.drop(session, project, name, by=changer())
        session.commit()
    report({"project": project, "template": name, "deleted": True})
    line(f"Deleted the template {name} of {project}")
