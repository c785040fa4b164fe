"""``govray token``: who may use the service, and until when.

A token is printed once, when it is made. The store keeps its hash, so no verb can show it again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from govray.cli.output import line, note, print_table, report, table
from govray.cli.store import DEFAULT_STORE, Store, opened_session

app = typer.Typer(help="Make and revoke bearer tokens of the service, and disable users.")


@app.command()
def new(
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Whose token.")],
    role: Annotated[
        str | None,
        typer.Option(
            "--role", help="The role of a new user: admin, engineer, auditor, supplier or member."
        ),
    ] = None,
    supplier: Annotated[
        str | None,
        typer.Option("--supplier", metavar="NAME", help="The name of a supplier's authority."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="read (default), write or admin. Repeatable."),
    ] = None,
    expires_days: Annotated[int, typer.Option("--expires-days", help="1 to 3650.")] = 90,
    name: Annotated[str, typer.Option("--name", help="What it is for.")] = "",
    store: Store = DEFAULT_STORE,
) -> None:
    """Make a token, and its user if that is new. The token is printed once."""
    from govray.platform.service.identity import tokens

    with opened_session(store) as session:
        text = tokens.new(
            session,
            user,
            role=role,
            supplier=supplier,
            scopes=scope or ["read"],
            name=name,
            days=expires_days,
            at=datetime.now(UTC),
        )
        row = tokens.row(session, text)
        said = {"token": text, "id": row.id, "user": row.user, "expires": row.expires}
        session.commit()
    report(said)
    line(text)  # alone on standard output, for $(…)
    note(f"For {said['user']}, until {said['expires']}. It is not shown again.")


@app.command("ls")
def ls(store: Store = DEFAULT_STORE) -> None:
    """List users and their tokens, without secrets."""
    from govray.platform.service.identity import tokens

    with opened_session(store) as session:
        rows = tokens.listed(session, at=datetime.now(UTC))
    report({"tokens": rows})
    if not rows:
        line("No users yet. Make one: govray token new --user NAME --role admin --scope admin")
        return
    grid = table("user", "role", "supplier", "token", "scopes", "expires", "state")
    for row in rows:
        scopes = " ".join(row["scopes"])
        cells = (row["user"], row["role"], row["supplier"], row["id"], scopes, row["expires"])
        grid.row(*(str(cell or "-") for cell in cells), row["state"])
    print_table(grid)


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id, from ls.")],
    store: Store = DEFAULT_STORE,
) -> None:
    """Revoke a token, for ever. A running service refuses it within two seconds."""
    from govray.platform.service.identity import tokens

    with opened_session(store) as session:
        row = tokens.revoke(session, token, at=datetime.now(UTC))
        said = {"id": row.id, "user": row.user, "revoked": row.revoked}
        session.commit()
    report(said)
    line(f"Revoked {said['id']} of {said['user']}")


@app.command()
def disable(
    user: Annotated[str, typer.Argument(metavar="USER")],
    store: Store = DEFAULT_STORE,
) -> None:
    """Disable a user and all of the user's tokens, until enabled again."""
    _set_disabled(user, True, store)


@app.command()
def enable(
    user: Annotated[str, typer.Argument(metavar="USER")],
    store: Store = DEFAULT_STORE,
) -> None:
    """Enable a user again. Revoked and expired tokens stay revoked and expired."""
    _set_disabled(user, False, store)


def _set_disabled(user: str, disabled: bool, store: str) -> None:
    from govray.platform.service.identity import tokens

    with opened_session(store) as session:
        tokens.set_disabled(session, user, disabled)
        session.commit()
    report({"user": user, "disabled": disabled})
    line(f"{'Disabled' if disabled else 'Enabled'} {user}")


@app.command("sign-out")
def sign_out(
    user: Annotated[str, typer.Argument(metavar="USER")],
    store: Store = DEFAULT_STORE,
) -> None:
    """End the sessions that a user has in browsers, also one of an identity provider."""
    from govray.platform.service.identity import browser_sessions

    with opened_session(store) as session:
        ended = browser_sessions.end_all(session, user)
        session.commit()
    report({"user": user, "ended": ended})
    line(f"Ended {ended} {'session' if ended == 1 else 'sessions'} of {user}")
