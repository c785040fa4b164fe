"""``govray role`` and ``group``: who may do what in the organisation, or in a part of it."""

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
    str | None, typer.Option("--group", metavar="NAME", help="The group, in place of a user.")
]
Workspace = Annotated[
    str | None, typer.Option("--workspace", metavar="NAME", help="In this workspace.")
]
Project = Annotated[str | None, typer.Option("--project", metavar="NAME", help="In this project.")]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="On this registered model.")
]

OfCase = Annotated[
    str | None, typer.Option("--case", metavar="NUMBER", help="On this rights holder's case.")
]


@app.command()
def bind(
    role: Annotated[
        str,
        typer.Option("--role", help="admin, engineer, steward, auditor, viewer or supplier."),
    ],
    user: ToUser = None,
    group: ToGroup = None,
    workspace: Workspace = None,
    project: Project = None,
    model: Model = None,
    case: OfCase = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="When it ends by itself.")
    ] = None,
    supplier: Annotated[
        str | None,
        typer.Option("--supplier", metavar="NAME", help="The name of a supplier's authority."),
    ] = None,
) -> None:
    """Give a role, in the whole organisation if no place is named."""

    if (user is None) == (group is None):
        raise UsageError("a role is for a user or for a group", do="Say --user or --group")
    [(scope, place)] = _places(workspace, project, model, case) or [("organisation", "")]
    made = service().people.bind(
        user=user,
        group=group,
        role=role,
        scope=scope,
        place=place,
        supplier=supplier,
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
    model: Model = None,
    case: OfCase = None,
) -> None:
    """List roles that are bound, ended ones too. Roles of accounts: govray token ls."""
    asked: dict[str, str | None] = {"user": user, "group": group}
    for scope, place in _places(workspace, project, model, case):
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


def _places(
    workspace: str | None, project: str | None, model: str | None, case: str | None
) -> list[tuple[str, str]]:
    """Scope and name of the one place that is named, if any."""
    places = {"workspace": workspace, "project": project, "model": model, "case": case}
    named = [(scope, place) for scope, place in places.items() if place is not None]
    if len(named) > 1:
        raise UsageError("a role is bound to one place", do="Say one of them")
    return named


groups = typer.Typer(help="Put users into groups, which get roles as one.")

Group = Annotated[str, typer.Argument(metavar="GROUP")]
User = Annotated[str, typer.Argument(metavar="USER")]


@groups.command("add")
def add_member(group: Group, user: User) -> None:
    """Put a user into a group. The first one makes the group."""
    service().people.add_member(group, user)
    report({"group": group, "user": user, "member": True})
    line(f"{user} is in {group}")


@groups.command("remove")
def remove_member(group: Group, user: User) -> None:
    """Take a user out of a group."""
    service().people.remove_member(group, user)
    report({"group": group, "user": user, "member": False})
    line(f"{user} is no longer in {group}")


@groups.command("ls")
def ls_group() -> None:
    """List groups and their members. The identity provider's own are not known here."""
    people = service().people
    rows = [
        {"group": group["name"], "user": member["user"]}
        for group in people.groups()
        for member in people.members(group["name"])
    ]
    none = "No groups yet. Make one: govray group add GROUP USER"
    tell_rows(rows, "group, user", none)
