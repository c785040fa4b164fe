"""What of a request the program gets, and of its answer the browser: pure rules.

The program gets its own cookies and its own token. It gets nothing that says who the person is to
govray: no ``Authorization``, no ``Origin`` and no cookie of ours. The browser gets no cookie beyond
the task's path, none with a name of ours, and nothing that opens the task's origin to others.

Source: RFC 9110, section 7.6.1 (fields of one hop); RFC 6265, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from govray.platform.tasks.endpoint import Endpoint

COOKIE = "govray_task"
"""The session's cookie, of the task's own host and path."""

OURS = "govray_"
"""How the names of cookies begin that are the service's."""

Raw = Iterable[tuple[bytes, bytes]]

_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
_NOT_SENT = _HOP | frozenset(
    b"host authorization cookie origin referer expect forwarded via x-real-ip".split()
)
_NOT_SHOWN = _HOP | frozenset(
    b"server date set-cookie location clear-site-data alt-svc strict-transport-security "
    b"service-worker-allowed public-key-pins".split()
)
_ADDED = (
    # Beside those of the program: a browser applies all of them.
    ("Content-Security-Policy", "frame-ancestors 'self'"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Origin-Agent-Cluster", "?1"),
    ("Referrer-Policy", "no-referrer"),
)


def cookies(raw: Raw) -> Iterator[tuple[str, str]]:
    """The cookies of a request, in order, each name with its value."""
    for name, value in raw:
        if name == b"cookie":
            for each in value.decode("latin-1").split(";"):
                key, mark, text = each.strip().partition("=")
                if mark:
                    yield key, text


def to_program(raw: Raw, endpoint: Endpoint) -> list[tuple[str, str]]:
    """The header fields that the program gets."""
    kept = [*raw]
    named = _named(kept)
    sent = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in kept
        if name not in _NOT_SENT
        and name not in named
        and not name.startswith((b"sec-websocket-", b"x-forwarded-", b"govray-"))
    ]
    own = "; ".join(
        f"{name}={value}" for name, value in cookies(kept) if not name.lower().startswith(OURS)
    )
    if own:
        sent.append(("Cookie", own))
    return [*sent, ("Authorization", f"token {endpoint.token}")]


def to_browser(fields: Iterable[tuple[str, str]], endpoint: Endpoint) -> list[tuple[bytes, bytes]]:
    """The header fields that the browser gets."""
    kept = [(name.lower(), value) for name, value in fields]
    named = _named((name.encode("latin-1"), value.encode("latin-1")) for name, value in kept)
    shown = [
        (name, value)
        for name, value in kept
        if (key := name.encode("latin-1")) not in _NOT_SHOWN
        and key not in named
        and not name.startswith("access-control-")
    ]
    for name, value in kept:
        if name == "set-cookie" and (confined := confine(value, endpoint.task)):
            shown.append((name, confined))
        if name == "location":
            shown.append((name, value.removeprefix(endpoint.address)))
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in (*shown, *_ADDED)
    ]


def confine(cookie: str, task: str) -> str | None:
    """The value of ``Set-Cookie`` for the task's host and path alone; None for a name of ours."""
    first, *attributes = cookie.split(";")
    name = first.partition("=")[0].strip()
    if not name or name.lower().startswith(OURS):
        return None
    kept = [
        each.strip()
        for each in attributes
        if each.partition("=")[0].strip().lower() not in ("path", "domain")
    ]
    return "; ".join([first.strip(), *kept, f"Path=/tasks/{task}/"])


def _named(raw: Raw) -> frozenset[bytes]:
    """The fields that ``Connection`` names: they are of one hop as well."""
    return frozenset(
        each.strip().lower()
        for name, value in raw
        if name == b"connection"
        for each in value.split(b",")
    )
