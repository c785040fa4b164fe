"""The URL under which commits may lie: which schemes there are, and that it holds no secret.

Pure, and without pyarrow: the experiment file's schema uses it on the base install. A store's
credentials come from the environment of each process, as the store's own tools read them. A URL is
written into configs, records and messages, so it holds none.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
"""Schemes of pyarrow's own object stores."""

FSSPEC = "fsspec+"
"""pyarrow's prefix for file systems of fsspec."""

_OPTIONS = frozenset({"region", "scheme", "endpoint_override"})
"""What may follow the ``?``: where the store is, never credentials."""


def check_url(url: str) -> str:
    """Return ``url`` if commits may lie there.

    Raises:
        ValueError: It is not a URL of an object store, or may hold a secret. Then the message does
            not repeat it.
    """
    parts = urlsplit(url)
    fsspec = parts.scheme.startswith(FSSPEC) and parts.scheme != FSSPEC
    if not fsspec and parts.scheme not in SCHEMES:
        raise ValueError(
            f"give an object store's URL ({', '.join(SCHEMES)} or {FSSPEC}…://bucket/prefix); "
            "without it commits lie in the run's folder"
        )
    user, has_user, _ = parts.netloc.rpartition("@")
    container = parts.scheme.startswith("abfs")  # where others have a user
    if ":" in user or (has_user and not container):
        raise ValueError(
            "a user or a key has no place in a URL: give it by the store's environment variables"
        )
    if not parts.netloc and not (fsspec and parts.path.strip("/")):
        raise ValueError("the URL names no bucket")
    options = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if parts.fragment or options - _OPTIONS:
        raise ValueError(f"only {', '.join(sorted(_OPTIONS))} may follow the ? of the URL")
    return url


def below(url: str, name: str) -> str:
    """The URL of ``name`` below another."""
    base, mark, options = url.partition("?")
    return f"{base.rstrip('/')}/{name}{mark}{options}"
