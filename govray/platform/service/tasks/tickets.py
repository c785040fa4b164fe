"""Who may see a task: a ticket to enter, good once and for a minute, then a session.

A ticket goes through an address bar, so it is worth nothing afterwards. It is exchanged for a
session, whose secret is in a cookie that only the task's own host gets. Of both the store has the
SHA-256. Each is bound to one task. A session ends with its time. It ends as well when the token of
the person who asked is revoked or expires, or when its user is disabled. Who asked without a token
was signed in by a provider: what ends is then the user or the time, not the signing in.

Functions take a session of the database and never commit. Times are arguments.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete
from sqlalchemy.engine import CursorResult
from sqlmodel import Session, col, select

from govray.governance.formats.document import format_time, parse_time
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.tokens import digest
from govray.platform.store import tables
from govray.platform.store.tables import TaskTicket, Token, UserRow

ENTRY_SECONDS = 60
SESSION_HOURS = 8


def ticket(session: Session, task: str, caller: Caller, *, at: datetime) -> str:
    """A ticket for ``caller`` to enter ``task``; told here and never again. The caller of this
    function has checked that they may. Tickets that ended are forgotten."""
    session.connection().execute(
        delete(tables.TaskTicket).where(col(TaskTicket.expires) <= format_time(at))
    )
    return _add(session, task, caller.name, caller.token, "entry", at, ENTRY_SECONDS)


def enter(session: Session, task: str, secret: str, *, at: datetime) -> str | None:
    """The secret of a new session, for a ticket that is good. The ticket is used up. Of two that
    bring one ticket at once, one gets a session."""
    row = _good(session, task, secret, "entry", at)
    if row is None:
        return None
    used: CursorResult[Any] = session.connection().execute(
        delete(tables.TaskTicket).where(col(TaskTicket.digest) == row.digest)
    )
    if used.rowcount != 1:
        return None
    session.expunge(row)
    return _add(session, task, row.user, row.token, "session", at, SESSION_HOURS * 3600)


def admitted(session: Session, task: str, secret: str, *, at: datetime) -> bool:
    """Whether ``secret`` is that of a session for ``task`` that goes on."""
    return _good(session, task, secret, "session", at) is not None


def _add(
    session: Session,
    task: str,
    user: str,
    token: str | None,
    use: str,
    at: datetime,
    seconds: int,
) -> str:
    secret = secrets.token_urlsafe(32)
    session.add(
        TaskTicket(
            digest=digest(secret),
            task=task,
            user=user,
            token=token,
            use=use,
            expires=format_time(at + timedelta(seconds=seconds)),
        )
    )
    session.flush()
    return secret


def _good(session: Session, task: str, secret: str, use: str, at: datetime) -> TaskTicket | None:
    # The digest is the key: to find a row is to know the secret, whatever the search's time tells.
    row = session.get(TaskTicket, digest(secret))
    if row is None or row.task != task or row.use != use or at >= parse_time(row.expires):
        return None
    if row.token is None:
        disabled = select(UserRow.name).where(
            UserRow.name == row.user, col(UserRow.disabled).is_(True)
        )
        if session.exec(disabled).first() is not None:
            return None
    else:
        found = session.exec(
            select(Token, UserRow).where(Token.id == row.token, UserRow.name == Token.user)
        ).one_or_none()
        if found is None:
            return None
        token, user = found
        if token.revoked is not None or user.disabled or at >= parse_time(token.expires):
            return None
    return row
