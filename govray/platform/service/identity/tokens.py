"""Bearer tokens: made once, kept as a hash, compared in constant time.

``govr_<id>_<secret>``: the id is public and finds the row, the secret is 32 random bytes. The
store has the SHA-256 of the secret, which is enough against a store that leaks since the secret
cannot be guessed. A token ends at its expiry, when it is revoked, or when its user is disabled.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session, col, select

from govray.errors import UsageError
from govray.governance.formats.document import format_time, parse_time
from govray.platform.service.identity.caller import ROLES, SCOPES, Caller
from govray.platform.store.tables import Token, UserRow

PREFIX = "govr_"
SECRET_BYTES = 32

_FORM = re.compile(r"govr_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")


class NotAccepted(Exception):
    """A bearer token is not accepted; the text says why, as far as its bearer may know."""


@dataclass(frozen=True)
class AcceptedToken:
    """A token that was accepted, and until when it may be remembered without a new look."""

    caller: Caller
    expires: datetime


def digest(secret: str) -> str:
    """What the store keeps of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def accept(session: Session, text: str, *, at: datetime) -> AcceptedToken:
    """The caller that ``text`` stands for. Raises `NotAccepted`."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise NotAccepted("This is no token of this service")
    id_, secret = form.groups()
    row = session.exec(
        select(Token, UserRow).where(Token.id == id_, UserRow.name == Token.user)
    ).one_or_none()
    # An unknown id costs the same comparison as a wrong secret, and reads the same.
    kept = row[0].secret_sha256 if row else digest("")
    if not hmac.compare_digest(kept, digest(secret)) or row is None:
        raise NotAccepted("This is no token of this service")
    token, user = row
    return standing(user, token, at=at)


def standing(user: UserRow, token: Token, *, at: datetime) -> AcceptedToken:
    """The caller that a token stands for whose secret is known to be right."""
    if token.revoked is not None:
        raise NotAccepted("The token was revoked")
    expires = parse_time(token.expires)
    if at >= expires:
        raise NotAccepted(f"The token expired at {token.expires}")
    if user.disabled:
        raise NotAccepted("The user is disabled")
    return AcceptedToken(caller_of(user, token), expires)


def caller_of(user: UserRow, token: Token) -> Caller:
    """The caller that a row of each stand for."""
    role = next((each for each in ROLES if each == user.role and each != "public"), None)
    if role is None:
        raise NotAccepted("The user has no role that this service knows")
    return Caller(
        name=user.name,
        account=role,
        supplier=user.supplier if role == "supplier" else None,
        scopes=frozenset(token.scopes),
        token=token.id,
    )


def new(
    session: Session,
    user: str,
    *,
    role: str | None,
    supplier: str | None = None,
    scopes: Iterable[str] = ("read",),
    name: str = "",
    days: int = 90,
    at: datetime,
) -> str:
    """A new token of ``user``, who is made if need be. It is told here and never again.

    The session's transaction is left to the caller.

    Args:
        role: Of a new user; of one that exists it must be the same, or None.
        supplier: The authority whose corpora a supplier owns.
        days: Until it expires, 1 to 3,650.
    """
    wanted = tuple(each for each in SCOPES if each in set(scopes))
    unknown = set(scopes) - set(SCOPES)
    if unknown or not wanted:
        raise UsageError(
            f"{sorted(unknown)[0]!r} is no scope" if unknown else "a token needs a scope",
            do=f"Choose from {', '.join(SCOPES)}",
        )
    if not 1 <= days <= 3650:
        raise UsageError("a token lasts 1 to 3650 days")
    row = session.get(UserRow, user) or _new_user(session, user, role, supplier, at)
    if role not in (None, row.role) or supplier not in (None, row.supplier):
        raise UsageError(
            f"the user has the role {row.role}"
            + (f" for supplier {row.supplier}" if row.supplier else ""),
            where=user,
            do="Leave --role and --supplier out, or name another user",
        )
    if row.disabled:
        raise UsageError("the user is disabled", where=user, do="Say govray token enable first")
    secret = secrets.token_urlsafe(SECRET_BYTES)
    token = Token(
        id=secrets.token_hex(6),
        user=user,
        secret_sha256=digest(secret),
        scopes=list(wanted),
        name=name,
        created=format_time(at),
        expires=format_time(at + timedelta(days=days)),
    )
    session.add(token)
    session.flush()
    return f"{PREFIX}{token.id}_{secret}"


def _new_user(
    session: Session, name: str, role: str | None, supplier: str | None, at: datetime
) -> UserRow:
    roles = [each for each in ROLES if each != "public"]
    if role not in roles:
        raise UsageError(
            "there is no such user yet" if role is None else f"{role!r} is no role",
            where=name,
            do=f"Say --role with one of {', '.join(roles)}",
        )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:60]!r} is no user name", do="Letters, digits and . _ @ -, at most 128"
        )
    if (role == "supplier") != (supplier is not None):
        raise UsageError(
            "a supplier, and only a supplier, is one of an issuing authority",
            where=name,
            do="Give --supplier with the authority that issues its credentials",
        )
    user = UserRow(name=name, role=role, supplier=supplier, created=format_time(at))
    session.add(user)
    session.flush()
    return user


def revoke(session: Session, id_: str, *, at: datetime) -> Token:
    """Revoke the token ``id_``; once revoked it stays so."""
    token = session.get(Token, _public(id_))
    if token is None:
        raise UsageError("there is no such token", where=_public(id_), do="See govray token ls")
    token.revoked = token.revoked or format_time(at)
    session.add(token)
    return token


def row(session: Session, text: str) -> Token:
    """The row of the token ``text``, which `new` has just made."""
    return session.get_one(Token, _public(text))


def listed(session: Session, *, at: datetime) -> list[dict[str, Any]]:
    """Users and their tokens, by name and time of making; a user without one has no ``id``."""
    statement = (
        select(UserRow, Token)
        .outerjoin(Token, col(Token.user) == col(UserRow.name))
        .order_by(col(UserRow.name), col(Token.created), col(Token.id))
    )
    return [
        {
            "user": user.name,
            "role": user.role,
            "supplier": user.supplier,
            "id": token.id if token else None,
            "name": token.name if token else None,
            "scopes": token.scopes if token else [],
            "expires": token.expires if token else None,
            "state": _state(user, token, at),
        }
        for user, token in session.exec(statement).all()
    ]


def _state(user: UserRow, token: Token | None, at: datetime) -> str:
    if user.disabled:
        return "disabled"
    if token is None:
        return "no token"
    if token.revoked is not None:
        return "revoked"
    return "expired" if at >= parse_time(token.expires) else "good"


def _public(text: str) -> str:
    """The id of what may be an id or a whole token: a secret gets into no message."""
    return text.removeprefix(PREFIX).partition("_")[0][:20]
