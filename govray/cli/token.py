"""``govray token``: who may use the service, and until when.

The first token is made on the store itself; all else asks the service.

A token is printed once, when it is made. The store keeps its hash, so no verb can show it again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from govray.cli import trust
from govray.cli.output import line, note, report
from govray.cli.server_option import service
from govray.cli.store import DEFAULT_STORE, Store, opened_session
from govray.cli.told import tell_rows

app = typer.Typer(help="Make and revoke bearer tokens of the service, and disable users.")
remote = typer.Typer(help="List and revoke bearer tokens of the service, and disable users.")


@app.command()
def new(
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="The user whose token it is.")
    ],
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
        typer.Option("--scope", help="The scope: read (default), write or admin. Repeatable."),
    ] = None,
    expires_days: Annotated[
        int, typer.Option("--expires-days", help="The days for which it holds: 1 to 3650.")
    ] = 90,
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


@remote.command("ls")
def ls() -> None:
    """List users and the tokens that you may see, without secrets."""
    from govray.governance.formats.document import format_time

    people = service().people
    now = format_time(trust.reference_time(None))
    rows = [{**each, "state": _state(each, now)} for each in people.tokens()]
    tell_rows(rows, "user, id, scopes, expires, state", "You have no token")


def _state(token: dict[str, Any], now: str) -> str:
    if token.get("revoked"):
        return "revoked"
    return "good" if token["expires"] > now else "expired"


@remote.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id, from ls.")],
) -> None:
    """Revoke a token, for ever. The service refuses it within two seconds."""
    # Of a whole token the id alone is sent: its secret belongs into no address.
    row = service().people.revoke_token(token.removeprefix("govr_").partition("_")[0])
    report(row)
    line(f"Revoked {row['id']} of {row['user']}")


@remote.command()
def disable(user: Annotated[str, typer.Argument(metavar="USER")]) -> None:
    """Disable a user and all of the user's tokens, until enabled again."""
    report(service().people.change(user, disabled=True))
    line(f"Disabled {user}")


@remote.command()
def enable(user: Annotated[str, typer.Argument(metavar="USER")]) -> None:
    """Enable a user again. Revoked and expired tokens stay revoked and expired."""
    report(service().people.change(user, disabled=False))
    line(f"Enabled {user}")


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


app.registered_commands += remote.registered_commands
