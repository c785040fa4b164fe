"""``govray group``: users that get roles together."""

from __future__ import annotations

from typing import Annotated

import typer

from govray.cli.output import line, print_table, report, table
from govray.cli.server_option import service

app = typer.Typer(help="Put users into groups, which get roles as one.")

Group = Annotated[str, typer.Argument(metavar="GROUP")]
User = Annotated[str, typer.Argument(metavar="USER")]


@app.command()
def add(group: Group, user: User) -> None:
    """Put a user into a group. The first one makes the group."""
    service().people.add_member(group, user)
    report({"group": group, "user": user, "member": True})
    line(f"{user} is in {group}")


@app.command()
def remove(group: Group, user: User) -> None:
    """Take a user out of a group."""
    service().people.remove_member(group, user)
    report({"group": group, "user": user, "member": False})
    line(f"{user} is no longer in {group}")


@app.command("ls")
def ls() -> None:
    """List groups and their members. The identity provider's own are not known here."""
    people = service().people
    rows = [
        {"group": group["name"], "user": member["user"]}
        for group in people.groups()
        for member in people.members(group["name"])
    ]
    report({"members": rows})
    if not rows:
        line("No groups yet. Make one: govray group add GROUP USER")
        return
    grid = table("group", "user")
    for row in rows:
        grid.row(row["group"], row["user"])
    print_table(grid)
