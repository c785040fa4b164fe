"""``govray template``: experiment files of a project that others start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from govray.cli.output import line, print_table, report, table
from govray.cli.served import service
from govray.cli.user_files import read_text

app = typer.Typer(help="Keep experiment files of a project that others start from.")

Project = Annotated[str, typer.Argument(metavar="PROJECT")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The template's name.")]


@app.command()
def put(
    project: Project,
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.")],
) -> None:
    """Make a template of an experiment file, or replace it."""
    report(service().projects.put_template(project, name, text=read_text(file)))
    line(f"{project} has the template {name}")


@app.command("ls")
def ls(project: Project) -> None:
    """List a project's templates."""
    rows = list(service().projects.templates(project))
    report({"templates": rows})
    if not rows:
        line("No templates yet. Store one: govray template put PROJECT NAME FILE")
        return
    grid = table("template", "changed", "by")
    for row in rows:
        grid.row(row["name"], row["changed"], row["user"])
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
) -> None:
    """Print the experiment file that a template makes, with overrides."""
    filled = service().projects.fill_template(project, name, set=override or [])
    report(filled)
    line(filled["text"].rstrip("\n"))


@app.command()
def drop(project: Project, name: Name) -> None:
    """Delete a template."""
    service().projects.delete_template(project, name)
    report({"project": project, "template": name, "deleted": True})
    line(f"Deleted the template {name} of {project}")
