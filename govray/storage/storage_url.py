"""Paths and URLs that people write: which is which, and which URLs name an object store.

Pure, and without pyarrow: the experiment file's schema uses it on the base install. A store's
credentials come from the environment of each process, as the store's own tools read them. A URL is
written into configs, records and messages, so it holds none.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
"""Schemes of object stores."""

_OPTIONS = frozenset({"region", "scheme", "endpoint_override"})
"""What may follow the ``?``: where the store is, never credentials."""

# One letter is a drive. `pathlib` and a slip of the hand leave one slash of two.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/*)")

_P = TypeVar("_P", bound=str | os.PathLike[str])


def is_url(text: str) -> bool:
    """Whether ``text`` is meant as a URL; a path that looks like one is written with ``./``."""
    match = _URL.match(text)
    return bool(match and (match[2] or match[1].lower() in SCHEMES))


def check_path(path: _P) -> _P:
    """Return ``path`` if it is one of a disk. `pathlib` would make the folder ``s3:`` of a URL.

    Raises:
        ValueError: It is a URL. The message does not repeat it, since it may hold a secret.
    """
    if is_url(str(path)):
        raise ValueError(
            "give a path, not a URL: copy or mount what lies there. docs/checkpoints.md lists what "
            "takes URLs"
        )
    return path


def check_url(url: str) -> str:
    """Return ``url`` if it is one of an object store.

    Raises:
        ValueError: It is not a URL of an object store, or may hold a secret. Then the message does
            not repeat it.
    """
    parts = urlsplit(url)
    scheme, slashes = _split(url)
    if slashes < 2 or scheme not in SCHEMES:
        known = ", ".join(SCHEMES)
        raise ValueError(f"give an object store's URL ({known}://bucket/prefix){_meant(scheme)}")
    user, has_user, _ = parts.netloc.rpartition("@")
    container = scheme.startswith("abfs")  # where others have a user
    if ":" in user or (has_user and not container):
        raise ValueError(
            "a user or a key has no place in a URL: give it by the store's environment variables"
        )
    if not parts.netloc:
        raise ValueError("the URL names no bucket")
    if "//" in parts.path.strip("/"):
        raise ValueError("the URL's key has an empty part: write one slash where it has two")
    options = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if parts.fragment or options - _OPTIONS:
        raise ValueError(f"only {', '.join(sorted(_OPTIONS))} may follow the ? of the URL")
    return url


def below(url: str, name: str) -> str:
    """The URL of ``name`` below another."""
    base, mark, options = url.partition("?")
    return f"{base.rstrip('/')}/{name}{mark}{options}"


def _split(url: str) -> tuple[str, int]:
    """The scheme as it is written, and the slashes behind it."""
    match = _URL.match(url)
    return (match[1], len(match[2])) if match else ("", 0)


def _meant(scheme: str) -> str:
    near = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1, cutoff=0.5)
    return f" (did you mean {near[0]}://…?)" if near else ""
