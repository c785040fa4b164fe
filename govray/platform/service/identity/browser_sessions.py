"""Who is signed in in a browser: made at each sign-in, kept as a hash, ended by signing out.

``govs_<id>_<secret>`` stands in a cookie. The id is public and finds the row, the secret is 32
random bytes, of which the store has the SHA-256. A session is new at every sign-in, so nobody can
bring one along and have another sign in to it.

A session ends when its user signs out, `LASTS` after its beginning, or `IDLE` after its last use.
One that was begun with a token also ends with that token and its user, and never has more rights.
Of one user the latest `MOST` stay.

Functions take a session of the store and never commit. Times are arguments.

Sources: OWASP Session Management Cheat Sheet (identifier, expiry, renewal); NIST SP 800-63B
section 7.
"""

from __future__ import annotations

import hmac
import re
import secrets
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.engine import CursorResult
from sqlmodel import Session, col

from govray.governance.formats.document import format_time, parse_time
from govray.platform.service.identity.caller import ROLES, Caller
from govray.platform.service.identity.tokens import (
    SECRET_BYTES,
    AcceptedToken,
    NotAccepted,
    digest,
    standing,
)
from govray.platform.store.tables import BrowserSession, Token, UserRow

PREFIX = "govs_"
LASTS = timedelta(hours=8)
IDLE = timedelta(hours=1)
NOTED = timedelta(minutes=5)
"""A use is written down if the last one that is was so long ago."""
MOST = 20
"""Sessions of one user at the same time."""

_FORM = re.compile(r"govs_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


def begin(session: Session, accepted: AcceptedToken, *, at: datetime) -> str:
    """A new session of whom ``accepted`` stands for. It is told here and never again.

    Args:
        accepted: A token that was accepted, or what an identity provider said. Roles that are bound
            here are no part of it: they are looked up each time.
    """
    caller = accepted.caller
    _forget(session, caller.name, at)
    secret = secrets.token_urlsafe(SECRET_BYTES)
    row = BrowserSession(
        id=secrets.token_hex(6),
        secret_sha256=digest(secret),
        user=caller.name,
        role=caller.account,
        supplier=caller.supplier,
        scopes=sorted(caller.scopes),
        groups=sorted(caller.groups),
        token=caller.token,
        created=format_time(at),
        used=format_time(at),
        expires=format_time(min(at + LASTS, accepted.expires)),
    )
    session.add(row)
    session.flush()
    return f"{PREFIX}{row.id}_{secret}"


def _forget(session: Session, user: str, at: datetime) -> None:
    """Remove what has ended, and of ``user`` all but those that leave room for one more."""
    idle, table = format_time(at - IDLE), BrowserSession
    session.connection().execute(
        delete(table).where(or_(col(table.expires) <= format_time(at), col(table.used) <= idle))
    )
    latest = select(col(table.id)).where(col(table.user) == user)
    latest = latest.order_by(col(table.created).desc(), col(table.id))
    beyond = session.connection().execute(latest.offset(MOST - 1)).scalars().all()
    if beyond:
        session.connection().execute(delete(table).where(col(table.id).in_(beyond)))


def accept(session: Session, text: str, *, at: datetime) -> tuple[AcceptedToken, bool]:
    """The caller that ``text`` stands for, and whether `note_use` is due. Raises `NotAccepted`."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise NotAccepted("This is no session of this service")
    id_, secret = form.groups()
    found = session.execute(
        select(BrowserSession, Token, UserRow)
        .outerjoin(Token, col(Token.id) == col(BrowserSession.token))
        .outerjoin(UserRow, col(UserRow.name) == col(BrowserSession.user))
        .where(col(BrowserSession.id) == id_)
    ).one_or_none()
    kept = found[0].secret_sha256 if found else digest("")
    if not hmac.compare_digest(kept, digest(secret)) or found is None:
        raise NotAccepted("The session has ended")
    row, token, user = found
    ends = min(parse_time(row.expires), parse_time(row.used) + IDLE)
    if at >= ends:
        raise NotAccepted("The session has ended")
    if row.token is not None:
        if token is None or user is None:
            raise NotAccepted("The session has ended")
        accepted = standing(user, token, at=at)
    else:
        accepted = AcceptedToken(_caller(row, user), ends)
    due = at - parse_time(row.used) >= NOTED
    return AcceptedToken(accepted.caller, min(accepted.expires, ends)), due


def note_use(session: Session, text: str, *, at: datetime) -> None:
    """Write down that the session ``text``, which was accepted, was used."""
    id_ = text.split("_")[1]
    noted = update(BrowserSession).where(col(BrowserSession.id) == id_)
    session.connection().execute(noted.values(used=format_time(at)))


def _caller(row: BrowserSession, user: UserRow | None) -> Caller:
    """Whom an identity provider said it is. Raises `NotAccepted`: a user of this name is disabled
    here, or the role is not known."""
    role = next((each for each in ROLES if each == row.role and each != "public"), None)
    if role is None or (user is not None and user.disabled):
        raise NotAccepted("The session has ended")
    return Caller(
        name=row.user,
        account=role,
        supplier=row.supplier,
        scopes=frozenset(row.scopes),
        groups=frozenset(row.groups),
    )


def end(session: Session, text: str) -> str | None:
    """End a session, and say whose it was; None if there is no such session."""
    form = _FORM.fullmatch(text)
    row = session.get(BrowserSession, form[1]) if form else None
    if form is None or row is None or not hmac.compare_digest(row.secret_sha256, digest(form[2])):
        return None
    name = row.user
    session.expunge(row)
    gone: CursorResult[Any] = session.connection().execute(
        delete(BrowserSession).where(col(BrowserSession.id) == form[1])
    )
    return name if gone.rowcount else None


def end_all(session: Session, user: str) -> int:
    """End every session of ``user``; how many there were."""
    gone: CursorResult[Any] = session.connection().execute(
        delete(BrowserSession).where(col(BrowserSession.user) == user)
    )
    return gone.rowcount
