"""``govray audit-log``: who did what through a service, for admins and auditors."""

from __future__ import annotations

from typing import Annotated

import typer

from govray.cli.server_option import service
from govray.cli.told import Before, Limit, OfUser, Since, between, tell_rows


def audit_log(
    user: OfUser = None,
    action: Annotated[
        str | None,
        typer.Option(
            "--action", metavar="ACTION", help="Show actions of this kind, such as token.make."
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject", metavar="NAME", help="Show what was done to this, such as a run's id."
        ),
    ] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Show only what was refused.")] = False,
    since: Since = None,
    before: Before = None,
    limit: Limit = 50,
) -> None:
    """List entries of a service's audit log, the latest first."""
    found = service().service.audit(
        user=user,
        action=action,
        subject=subject,
        outcome="refused" if refused else None,
        **between(since, before),
    )
    columns = {name: name for name in ("at", "user", "action", "subject", "outcome", "detail")}
    tell_rows(found, columns, "No entry that you may read is like that", limit)
