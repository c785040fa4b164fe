"""Which secret a store is indexed under: its fingerprint stands in the database.

A wrong secret finds nothing, and an answer "not found" for a record that was used is worse than
none. So the first model that is indexed leaves the fingerprint of the secret, and whoever comes
with another one, or with none, is told. `govray store rebuild` makes the index again under the
secret that it is given, and its fingerprint takes the place of the old one.
"""

from __future__ import annotations

import hashlib
import hmac

from sqlmodel import Session, select

from govray.errors import GovrayError, Refused, UsageError
from govray.platform.store.store_secret import has_place, key_file, load_key
from govray.platform.store.tables import StoreSecret

_DO = (
    "Put the right file there, or name it in GOVRAY_STORE_KEY. If it is lost, make the index again "
    "under a new one: govray store rebuild"
)


def fingerprint(key: bytes) -> str:
    """What the database keeps of the secret: an HMAC-SHA256 under it, which does not reveal it."""
    return hmac.new(key, b"govray store secret", hashlib.sha256).hexdigest()


def recorded(session: Session) -> str | None:
    """The fingerprint that the store is indexed under; None before the first model."""
    return session.exec(select(StoreSecret.fingerprint)).one_or_none()


def claim(session: Session, key: bytes) -> None:
    """Index under ``key`` from here on; the caller holds the writer's lock and commits."""
    known = recorded(session)
    if known is None:
        session.add(StoreSecret(fingerprint=fingerprint(key)))
    elif not hmac.compare_digest(known, fingerprint(key)):
        raise _another()


def indexing_key(session: Session, url: str) -> bytes:
    """The secret to index under: the store's, or a new one where nothing is indexed yet. Raises
    `Refused`: it is another one than the store is indexed under, or not kept safe."""
    return key_of(session, url) or load_key(url)


def key_of(session: Session, url: str) -> bytes | None:
    """The secret that the store is indexed under; None where there is none yet.

    Before the first model any secret will do.

    Raises:
        Refused: The file is of another secret, or not kept safe.
    """
    known = recorded(session)
    path = key_file(url) if known or has_place(url) else None
    if path is None or not path.is_file():
        if known is None:
            return None
        raise UsageError("the store's secret is missing", where=str(path), do=_DO)
    key = load_key(url)
    if known and not hmac.compare_digest(known, fingerprint(key)):
        raise _another(str(path))
    return key


def trouble(session: Session, url: str) -> GovrayError | None:
    """Why records cannot be found, or None if they can."""
    try:
        key_of(session, url)
    except (UsageError, Refused) as error:
        return error
    return None


def _another(where: str | None = None) -> Refused:
    return Refused("this is not the secret that the store is indexed under", where=where, do=_DO)
