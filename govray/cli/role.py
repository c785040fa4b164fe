"""``govray role``: who may do what in the organisation, or in a part of it."""

from __future__ import annotations

from typing import Annotated

import typer

from govray.cli.option_group import stated_time
from govray.cli.output import line, report
from govray.cli.server_option import service
from govray.cli.told import tell_rows
from govray.errors import UsageError

app = typer.Typer(help="Give roles in parts of the organisation, list them, take them away.")

ToUser = Annotated[
    str | None,
    typer.Option("--user", metavar="NAME", help="The user; oidc:SUBJECT of an identity provider."),
]
ToGroup = Annotated[
    str | None, typer.Option("--group", metavar="NAME", help="Its group, in place of a user.")
]
Workspace = Annotated[
    str | None, typer.Option("--workspace", metavar="NAME", help="In this workspace.")
]
Project = Annotated[str | None, typer.Option("--project", metavar="NAME", help="In this project.")]


@app.command()
def bind(
    role: Annotated[
        str,
        typer.Option("--role", help="admin, engineer, steward, auditor or viewer."),
    ],
    user: ToUser = None,
    group: ToGroup = None,
    workspace: Workspace = None,
    project: Project = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="When it ends by itself.")
    ] = None,
) -> None:
    """Give a role, in the whole organisation if no place is named."""

    if (user is None) == (group is None):
        raise UsageError("a role is for a user or for a group", do="Say --user or --group")
    [(scope, place)] = _places(workspace, project) or [("organisation", "")]
    made = service().people.bind(
        user=user,
        group=group,
        role=role,
        scope=scope,
        place=place,
        until=stated_time(until, "--until"),
    )
    report(made)
    line(f"{made['subject']} is {role} in the {f'{scope} {place}'.strip()}  ({made['id']})")


@app.command("ls")
def ls(
    user: ToUser = None,
    group: ToGroup = None,
    workspace: Workspace = None,
    project: Project = None,
) -> None:
    """List roles that are bound, ended ones too. Roles of accounts: govray token ls."""
    asked: dict[str, str | None] = {"user": user, "group": group}
    for scope, place in _places(workspace, project):
        asked |= {"scope": scope, "place": place}
    columns = "id, kind: subjectKind, subject, role, scope, place, until"
    none = "No role is bound. Bind one: govray role bind --user NAME --role ROLE --project P"
    tell_rows(service().people.roles(**asked), columns, none)


@app.command()
def unbind(
    binding: Annotated[str, typer.Argument(metavar="ID", help="The binding's id, from ls.")],
) -> None:
    """Take a role away. The service forgets it within two seconds."""
    service().people.unbind(binding)
    report({"id": binding, "removed": True})
    line(f"{binding} is no longer bound")


def _places(workspace: str | None, project: str | None) -> list[tuple[str, str]]:
    """Scope and name of the one place that is named, if any."""
    places = {"workspace": workspace, "project": project}
    named = [(scope, place) for scope, place in places.items() if place is not None]
    if len(named) > 1:
        raise UsageError("a role is bound to one place", do="Say one of them")
    return named
