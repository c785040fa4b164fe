"""A server's token: in a file that its owner alone may read, and sent where nobody listens."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from govray.errors import Refused, UsageError
from govray.governance.submission.http_exchange import is_loopback
from govray.storage.private_file import OpenToOthers, read_private

SHORTEST = 32
"""Characters of a token that somebody makes for this."""


def read_token(path: Path, what: str, *, shortest: int = 1) -> str:
    """The token that a file holds. ``what`` it is, as errors call it."""
    where, do = str(path), "Write random letters and digits into it, and give it mode 0600"
    try:
        text = read_private(path, 4096).decode("ascii", "replace").strip()
    except OpenToOthers as error:
        raise Refused(
            f"others than its owner may read {what}", where=where, do=f"Run {error.remedy}"
        ) from None
    except OSError as error:
        raise UsageError(f"{what} cannot be read ({error.strerror})", where=where, do=do) from None
    if len(text) < shortest or not text.isprintable():
        least = f" of at least {shortest} characters" if shortest > 1 else ""
        raise UsageError(f"the file holds no token{least}", where=where, do=do)
    return text


def check_private(url: str, token: str, *, where: str, do: str) -> None:
    """Return if ``url`` is https, or on this machine. ``token`` it is sent, as errors call it."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise Refused(
            f"the token of {token} would be sent to {url} in the clear",
            where=where,
            do=f"Give an https:// address, or {do}",
        )
