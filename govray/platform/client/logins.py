"""The tokens that `govray login` keeps: one for each server, in a file that its owner alone reads.

The file is ``govray/logins.json`` in the user's configuration folder (XDG Base Directory
Specification). One that others may read is refused, never mended: who has read it, has the tokens.
No token is ever printed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from govray.errors import Refused, UsageError
from govray.storage.atomic_file import make_folder, write_whole

_LARGEST = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Login:
    """A token of one server. ``expires``: Unix time of its end; None: only the server knows."""

    token: str = field(repr=False)
    expires: float | None = None


def logins_file() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".config"
    return base / "govray" / "logins.json"


def read_login(server: str, *, at: datetime | None = None) -> Login | None:
    """The login of ``server``; None without one, or if its token has ended. Raises `Refused`:
    others may read the file."""
    entry = _read().get(server)
    if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
        return None
    expires = entry.get("expires")
    kept = float(expires) if isinstance(expires, int | float) else None
    if kept is not None and kept <= (at or datetime.now(UTC)).timestamp():
        return None
    return Login(token=entry["token"], expires=kept)


def keep_login(server: str, login: Login) -> Path:
    """Keep a login, in the place of one of the same server. Returns the file. Raises `Refused`:
    others may read the file."""
    entry = {"token": login.token} | ({"expires": login.expires} if login.expires else {})
    return _write({**_read(), server: entry})


def forget_login(server: str) -> bool:
    """Forget a login; whether there was one. Raises as `keep_login`."""
    kept = dict(_read())
    if kept.pop(server, None) is None:
        return False
    _write(kept)
    return True


def _read() -> Mapping[str, Any]:
    path = logins_file()
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_LARGEST)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or status.st_uid != os.geteuid():
        raise Refused(
            "others can read this file of tokens, or it is another user's",
            where=str(path),
            do="Revoke its tokens, delete it, and log in again",
        )
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError("this is no file of logins", where=str(path), do="Delete it and log in")
    return value


def _write(value: Mapping[str, Any]) -> Path:
    path = logins_file()
    try:
        make_folder(path.parent, mode=0o700)
        write_whole(path, json.dumps(value, indent=1).encode(), mode=0o600)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from None
    return path
