"""``govray project`` and ``workspace``: what runs count for, and what may be submitted to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from govray.cli.listing_verbs import add_listings
from govray.cli.output import line, report
from govray.cli.remote_runs import tell_marked
from govray.cli.server_option import service
from govray.cli.user_files import read_text

app = typer.Typer(help="Make, list, archive and delete projects, and set their config policies.")

Name = Annotated[str, typer.Argument(metavar="PROJECT")]


@app.command()
def new(
    name: Name,
    workspace: Annotated[
        str, typer.Option("--workspace", metavar="NAME", help="The workspace that holds it.")
    ] = "default",
    description: Annotated[
        str, typer.Option("--description", help="What it is for, in one line.")
    ] = "",
) -> None:
    """Make a project. Runs that named it before are its own from then on."""
    made = service().projects.make(name=name, workspace=workspace, description=description)
    report(made)
    line(f"Made the project {name} in {workspace}")


add_listings(app, "project")


@app.command()
def archive(
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False,
) -> None:
    """Archive a project: it takes no experiments, and its runs stay."""
    report(service().projects.change(name, archived=not undo))
    line(f"{'Brought back' if undo else 'Archived'} {name}")


@app.command()
def delete(name: Name) -> None:
    """Mark all runs of a project to be deleted; once they are gone, delete it."""
    marked = service().projects.delete(name).items
    tell_marked(marked)
    line(f"{name}  archived: delete it again once they are gone" if marked else f"Deleted {name}")


@app.command()
def settings(
    name: Name,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The config policy that it gets, as YAML."),
    ] = None,
) -> None:
    """Show a project's config policy, or replace it by a file's."""
    from govray.governance.submission.yaml_overrides import read_mapping, written

    projects = service().projects
    if file is None:
        answer = projects.settings(name)
    else:
        answer = projects.set(name, body=dict(read_mapping(read_text(file), name=str(file))))
    found = {key: value for key, value in answer["settings"].items() if value is not None}
    report({"project": name, "settings": found})
    for each in written(found).rstrip().split("\n"):
        line(each)


workspaces = typer.Typer(help="Make, list and archive workspaces, which hold projects.")

WorkspaceName = Annotated[str, typer.Argument(metavar="WORKSPACE")]


@workspaces.command("new")
def new_workspace(
    name: WorkspaceName,
    description: Annotated[
        str, typer.Option("--description", help="What it is for, in one line.")
    ] = "",
) -> None:
    """Make a workspace."""
    report(service().projects.make_workspace(name=name, description=description))
    line(f"Made the workspace {name}")


add_listings(workspaces, "workspace")


@workspaces.command("archive")
def archive_workspace(
    name: WorkspaceName,
    undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False,
) -> None:
    """Archive a workspace, whose projects are archived."""
    report(service().projects.change_workspace(name, archived=not undo))
    line(f"{'Brought back' if undo else 'Archived'} {name}")
