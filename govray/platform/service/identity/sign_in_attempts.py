"""Sign-ins that were begun at an identity provider: begun once, taken once, within `LASTS`.

A browser holds one secret. ``state``, ``nonce`` and the verifier of PKCE follow from it by HMAC, so
none of them tells another. The store has the secret's SHA-256, and nothing that a reader of the
store could sign in with. An answer of the provider counts in the browser that asked, and once.

Functions take a session and never commit. Times are arguments.

Sources: RFC 7636 sections 4.1 and 4.2 (verifier, S256). RFC 9700 sections 2.1.1 and 4.7 (binding to
the browser). OpenID Connect Core 1.0 section 15.5.2 (nonce).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.engine import CursorResult
from sqlmodel import Session, col

from govray.governance.formats.document import format_time
from govray.platform.store.tables import SignInAttempt

LASTS = timedelta(minutes=10)
MOST = 10_000
"""Attempts at the same time, of everyone together; above that the oldest end."""
_FORM = 43
"""Characters of 32 bytes in base64url."""


@dataclass(frozen=True)
class BrowserSignIn:
    """One sign-in of one browser. ``following`` is the path to go on to."""

    secret: str = field(repr=False)
    following: str = "/"

    @property
    def state(self) -> str:
        """What the provider sends back with its answer."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """What the id token has to hold."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """What only the token endpoint is told."""
        return self._derived("verifier")

    @property
    def challenge(self) -> str:
        """The verifier's SHA-256, which the browser carries to the provider."""
        return _text(hashlib.sha256(self.verifier.encode()).digest())

    def _derived(self, label: str) -> str:
        return _text(hmac.digest(self.secret.encode(), label.encode(), "sha256"))


def begin(session: Session, following: str, *, at: datetime) -> BrowserSignIn:
    """A new attempt. Those that ended are forgotten."""
    attempt = BrowserSignIn(secrets.token_urlsafe(32), following)
    connection = session.connection()
    connection.execute(delete(SignInAttempt).where(col(SignInAttempt.expires) <= format_time(at)))
    count = connection.execute(select(func.count()).select_from(SignInAttempt)).scalar_one()
    if count >= MOST:
        oldest = select(col(SignInAttempt.secret_sha256)).order_by(col(SignInAttempt.expires))
        gone = connection.execute(oldest.limit(count - MOST + 1)).scalars().all()
        connection.execute(delete(SignInAttempt).where(col(SignInAttempt.secret_sha256).in_(gone)))
    session.add(
        SignInAttempt(
            secret_sha256=_digest(attempt.secret),
            following=following,
            expires=format_time(at + LASTS),
        )
    )
    session.flush()
    return attempt


def take(session: Session, secret: str, state: str, *, at: datetime) -> BrowserSignIn | None:
    """The attempt of a browser, which then is over; None if ``state`` answers none.
    Of two that take one, one gets it. A ``state`` of another attempt ends nothing."""
    if len(secret) != _FORM or not hmac.compare_digest(
        BrowserSignIn(secret).state.encode(), state.encode()
    ):
        return None
    row = session.get(SignInAttempt, _digest(secret))
    if row is None:
        return None
    following, expires = row.following, row.expires
    session.expunge(row)
    done: CursorResult[Any] = session.connection().execute(
        delete(SignInAttempt).where(col(SignInAttempt.secret_sha256) == _digest(secret))
    )
    if done.rowcount != 1 or expires <= format_time(at):
        return None
    return BrowserSignIn(secret, following)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
