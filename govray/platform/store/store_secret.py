"""The store's own secret, which masks the secrets of corpora.

Records are indexed by their leaves, which only their corpus's secret opens. With the tables but not
the store's secret, nobody can confirm a guess. The service can, and decides whom it answers.

The secret is 32 bytes in a file of mode 0600, beside a SQLite file unless ``GOVRAY_STORE_KEY``
names another. It is not in the database. Losing it makes records unsearchable until they are
indexed again under a new one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from sqlmodel import Session, select

from govray.errors import GovrayError, Refused, UsageError
from govray.platform.store.database import parse_url, sqlite_file
from govray.platform.store.tables import StoreSecret
from govray.storage.atomic_file import write_whole
from govray.storage.private_file import OpenToOthers, read_private
from govray.storage.storage_url import check_path

KEY_BYTES = 32
KEY_ENV = "GOVRAY_STORE_KEY"

_HEX = re.compile(r"[0-9a-f]{64}")


def mask_secret(secret: bytes, commitment: str, key: bytes) -> bytes:
    """A corpus's secret as the store keeps it, and back: XOR with a pad that only the key gives.

    The pad is HMAC-SHA256(key, "corpus secret" || commitment). A commitment belongs to one secret,
    so no pad is used for two.

    Args:
        secret: 32 bytes, in either form.
    """
    return masked(secret, b"corpus secret" + commitment.encode(), key)


def masked(secret: bytes, label: bytes, key: bytes) -> bytes:
    """A secret of 32 bytes XOR HMAC-SHA256(key, label), and back."""
    pad = hmac.digest(key, label, "sha256")
    return bytes(a ^ b for a, b in zip(secret, pad, strict=True))


def key_file(url: str) -> Path:
    """Where the secret of the store at ``url`` lies. Raises `UsageError`: the store is on a server
    and ``GOVRAY_STORE_KEY`` is not set, or it is no path."""
    given = os.environ.get(KEY_ENV)
    if given:
        if _HEX.fullmatch(given):
            raise UsageError(
                "this is a secret, not the path of one", where=KEY_ENV, do="Put it into a file"
            )
        try:
            return Path(check_path(given))
        except ValueError as error:
            raise UsageError(str(error), where=KEY_ENV) from None
    file = sqlite_file(parse_url(url))
    if file is None:
        raise UsageError(
            "a store on a server needs a file for its secret",
            where=KEY_ENV,
            do=f"Set {KEY_ENV} to a path; the file is made there, and every user of the store "
            "needs the same one",
        )
    return file.with_name(f"{file.name}.key")


def has_place(url: str) -> bool:
    """Whether the secret has a place: beside the file, or where ``GOVRAY_STORE_KEY`` says."""
    return bool(os.environ.get(KEY_ENV)) or sqlite_file(parse_url(url)) is not None


def load_key(url: str) -> bytes:
    """The secret of the store at ``url``, made if need be. Raises `Refused`: others can
    read the file, or it is not 32 bytes."""
    path = key_file(url)
    if not path.exists():
        _make(path)
    try:
        key = read_private(path, KEY_BYTES + 1)
    except OpenToOthers as error:
        raise Refused(
            "the store's secret can be read by others", where=str(path), do=error.remedy
        ) from None
    except OSError as error:
        raise UsageError(
            f"the store's secret cannot be read ({error.strerror})", where=str(path)
        ) from None
    if len(key) != KEY_BYTES:
        raise Refused(
            f"the store's secret is not {KEY_BYTES} bytes",
            where=str(path),
            do="Put the backup of the secret there; delete the file only if nothing was ever "
            "indexed under it",
        )
    return key


def _make(path: Path) -> None:
    """Make the secret: whole under its name, or not there, whenever the process ends. Of two that
    make it at once the first one's stays."""
    try:
        with suppress(FileExistsError):
            write_whole(path, secrets.token_bytes(KEY_BYTES), mode=0o600, replace=False)
    except OSError as error:
        raise UsageError(
            f"the store's secret cannot be made ({error.strerror})", where=str(path)
        ) from None


# Which secret a store is indexed under: its fingerprint stands in the database.
#
# A wrong secret finds nothing, and an answer "not found" for a record that was used is worse than
# none. So the first model that is indexed leaves the fingerprint of the secret, and whoever comes
# with another one, or with none, is told. `govray store rebuild` makes the index again under the
# secret that it is given, and its fingerprint takes the place of the old one.


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
    `Refused`: the store is indexed under a different one, or it is not kept safe."""
    return key_of(session, url) or load_key(url)


def key_of(session: Session, url: str) -> bytes | None:
    """The secret that the store is indexed under; None before the first model.

    Until then any secret will do.

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
