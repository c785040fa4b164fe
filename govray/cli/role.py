"""``govray role``: who may do what in the organisation, or in a part of it."""

from __future__ import annotations

from typing import Annotated

import typer

from govray.cli.changer import changer
from govray.cli.output import line, print_table, report, table
from govray.cli.store import DEFAULT_STORE, Store, opened_session
from govray.cli.time_option import given_time
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
    str | None, typer.Option("--model", metavar="NAME", help="Of this registered model.")
]

OfCase = Annotated[
    str | None, typer.Option("--case", metavar="NUMBER", help="Of this rights holder's case.")
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
    store: Store = DEFAULT_STORE,
) -> None:
    """Give a role, in the whole organisation if no place is named."""
    from govray.governance.formats.document import format_time
    from govray.platform.store import role_bindings
    from govray.platform.store.role_bindings import Grant

    if (user is None) == (group is None):
        raise UsageError("a role is for a user or for a group", do="Say --user or --group")
    places = {"workspace": workspace, "project": project, "model": model, "case": case}
    named = [(scope, place) for scope, place in places.items() if place is not None]
    if len(named) > 1:
        raise UsageError("a role is bound to one place", do="Say one of them")
    scope, place = named[0] if named else ("organisation", "")
    grant = Grant(
        subject_kind="user" if user is not None else "group",
        subject=user or group or "",
        role=role,
        scope=scope,
        place=place,
        supplier=supplier,
        until=format_time(given_time(until, "--until")) if until else None,
    )
    with opened_session(store) as session:
        role_bindings.bind(session, grant, by=changer())
        session.commit()
    report({"id": grant.id, **vars(grant)})
    line(f"{grant.subject} is {role} in the {grant.where}  ({grant.id})")


@app.command("ls")
def ls(
    user: ToUser = None,
    group: ToGroup = None,
    workspace: Workspace = None,
    project: Project = None,
    model: Model = None,
    case: OfCase = None,
    store: Store = DEFAULT_STORE,
) -> None:
    """List roles that are bound, ended ones too. Roles of accounts: govray token ls."""
    from sqlmodel import col, select

    from govray.platform.store.tables import RoleBinding

    b = RoleBinding
    statement = select(b).order_by(col(b.scope), col(b.place), col(b.subject), col(b.role))
    subjects = (("user", user), ("group", group))
    places = (("workspace", workspace), ("project", project), ("model", model), ("case", case))
    for kind, name in subjects:
        if name is not None:
            statement = statement.where(b.subject_kind == kind, b.subject == name)
    for scope, name in places:
        if name is not None:
            statement = statement.where(b.scope == scope, b.place == name)
    with opened_session(store) as session:
        rows = [row.model_dump() for row in session.exec(statement)]
    report({"roles": rows})
    if not rows:
        line("No role is bound. Bind one: govray role bind --user NAME --role ROLE --project P")
        return
    grid = table("id", "subject", "role", "place", "until")
    for row in rows:
        subject = f"{row['subject_kind']} {row['subject']}"
        place = f"{row['scope']} {row['place']}".strip()
        grid.row(row["id"], subject, row["role"], place, row["until"] or "-")
    print_table(grid)


@app.command()
def unbind(
    binding: Annotated[str, typer.Argument(metavar="ID", help="The binding's id, from ls.")],
    store: Store = DEFAULT_STORE,
) -> None:
    """Take a role away. A running service forgets it within two seconds."""
    from govray.platform.store import role_bindings

    with opened_session(store) as session:
        row = role_bindings.unbind(session, binding, by=changer())
        said = f"{row.subject} is no longer {row.role} in the {row.scope} {row.place}".strip()
        session.commit()
    report({"id": binding, "removed": True})
    line(said)
