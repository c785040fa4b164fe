"""``govray group``: users that get roles together."""

from __future__ import annotations

from typing import Annotated

import typer

from govray.cli.changer import changer
from govray.cli.output import line, print_table, report, table
from govray.cli.store import DEFAULT_STORE, Store, opened_session

app = typer.Typer(help="Put users into groups, which get roles as one.")

Group = Annotated[str, typer.Argument(metavar="GROUP")]
User = Annotated[str, typer.Argument(metavar="USER")]


@app.command()
def add(group: Group, user: User, store: Store = DEFAULT_STORE) -> None:
    """Put a user into a group, which its first member makes."""
    from govray.platform.store import role_bindings

    with opened_session(store) as session:
        role_bindings.add_member(session, group, user, by=changer())
        session.commit()
    report({"group": group, "user": user, "member": True})
    line(f"{user} is in {group}")


@app.command()
def remove(group: Group, user: User, store: Store = DEFAULT_STORE) -> None:
    """Take a user out of a group."""
    from govray.platform.store import role_bindings

    with opened_session(store) as session:
        role_bindings.remove_member(session, group, user, by=changer())
        session.commit()
    report({"group": group, "user": user, "member": False})
    line(f"{user} is no longer in {group}")


@app.command("ls")
def ls(store: Store = DEFAULT_STORE) -> None:
    """List groups and who is in them; an identity provider's own are not known here."""
    from sqlmodel import col, select

    from govray.platform.store.tables import GroupMember

    with opened_session(store) as session:
        found = select(GroupMember).order_by(col(GroupMember.group), col(GroupMember.user))
        rows = [(row.group, row.user) for row in session.exec(found)]
    report({"members": [{"group": group, "user": user} for group, user in rows]})
    if not rows:
        line("No groups yet. Make one: govray group add GROUP USER")
        return
    grid = table("group", "user")
    for row in rows:
        grid.row(*row)
    print_table(grid)
