"""One request to another server: bounded in time and size, through no redirect.

By the standard library, so that the base install can ask. Plain http is allowed: the caller looks
at the address before it sends a secret.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from govray.errors import InfrastructureFailed, UsageError

TIMEOUT_S = 30.0
"""Without a byte."""
MAX_ANSWER = 256 * 1024


@dataclass(frozen=True)
class HttpAnswer:
    """What came back. ``kind``: its media type, without parameters. ``body``: at most `MAX_ANSWER`
    bytes. ``date``: the server's time as its header has it."""

    status: int
    kind: str
    body: bytes
    date: str = ""


def check_url(url: str, *, where: str) -> str:
    """Return ``url`` if it is http or https, with a host and without a login."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good, parts = None, None
    if not good or parts is None or parts.username is not None or not url.isprintable():
        raise UsageError(
            "no address of a server",
            where=where,
            do="Give a URL such as https://witness.example, without a login in it",
        )
    return url


def is_loopback(host: str) -> bool:
    """Whether ``host`` names this machine and no other."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def post(url: str, body: bytes, *, kind: str, where: str, bearer: str | None = None) -> HttpAnswer:
    """Send ``body``, and read the answer, whatever its status.

    Args:
        url: Checked by `check_url`.
        bearer: A token or secret, which the request carries.

    Raises:
        InfrastructureFailed: Nothing answers.
        UsageError: The answer is larger than any that is asked for.
    """
    return _exchange(url, body, {"Content-Type": kind}, bearer, where)


def get(url: str, *, where: str, bearer: str | None = None) -> HttpAnswer:
    """Read the answer, whatever its status. As `post`."""
    return _exchange(url, None, {}, bearer, where)


def _exchange(
    url: str, body: bytes | None, headers: dict[str, str], bearer: str | None, where: str
) -> HttpAnswer:
    headers["User-Agent"] = "govray"
    if bearer is not None:
        headers["Authorization"] = f"Bearer {bearer}"
    request = urllib.request.Request(url, body, headers)  # noqa: S310
    try:
        try:
            with _opener().open(request, timeout=TIMEOUT_S) as response:
                return _answer(response, where)
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error, where)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InfrastructureFailed(
            f"the server does not answer: {reason}",
            where=where,
            do="Check the address, and try again",
        ) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An address is the one that was given; a redirect is an answer like another."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NoRedirect)


def _answer(response: Any, where: str) -> HttpAnswer:
    body = response.read(MAX_ANSWER + 1)
    if len(body) > MAX_ANSWER:
        raise UsageError(
            f"the answer is larger than {MAX_ANSWER} bytes",
            where=where,
            do="Check that the address is the one that takes such requests",
        )
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return HttpAnswer(response.status, kind, body, response.headers.get("Date", ""))
