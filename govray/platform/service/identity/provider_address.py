"""What an identity provider is asked over HTTP: at which addresses, and how much of an answer.

An address is https, or http on this machine. No redirect is followed, so nobody on the way answers
in the provider's place. An answer is one JSON object of at most `MAX_ANSWER` bytes, and has to be
whole within `TIMEOUT` seconds after it began.

Sources: RFC 9700 section 2.6 (TLS throughout); RFC 8252 section 8.3 (http on loopback).
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit

from govray.errors import UsageError
from govray.governance.submission.http_exchange import is_loopback

MAX_ANSWER = 1 << 18
TIMEOUT = 5.0


class NoAnswer(Exception):
    """The provider gave no answer that can be used; the text says why, and repeats none of it.
    ``error``: the error code of OAuth 2.0 that it gave (RFC 6749 section 5.2), if it gave one."""

    def __init__(self, why: str, error: str | None = None) -> None:
        super().__init__(why)
        self.error = error


def is_safe(url: str) -> bool:
    """Whether nobody on the way can answer at ``url``: it is https, or on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    )


def check_address(url: str, field: str, what: str = "keys are fetched over https only") -> None:
    """Refuse an address at which somebody on the way could answer."""
    if not is_safe(url):
        raise UsageError(
            what,
            where=f"oidc {field} {url[:200]}",
            do="Give the provider's https:// address; http:// is for a provider on this machine.",
        )


def ask(
    url: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON object at ``url``. ``form``: sent by POST, if given."""
    if not is_safe(url):
        raise NoAnswer("the address is not https")
    request = urllib.request.Request(  # noqa: S310 (https, or http on this machine)
        url,
        data=urlencode(form).encode() if form is not None else None,
        headers={"Accept": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.build_opener(_NoRedirects()).open(request, timeout=TIMEOUT) as answer:
            data = _body(answer)
    except HTTPError as error:
        with error:
            raise NoAnswer(f"it answered {error.code}", _error_code(error)) from None
    except (URLError, OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"it cannot be reached ({type(error).__name__})") from None
    return _object(data)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect the error that its status is."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _body(answer: http.client.HTTPResponse) -> bytes:
    until, parts, size = time.monotonic() + TIMEOUT, [], 0
    while part := answer.read1(1 << 14):
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            raise NoAnswer(f"its answer has more than {MAX_ANSWER} bytes")
        if time.monotonic() > until:
            raise NoAnswer(f"its answer was not whole within {TIMEOUT:g} s")
    return b"".join(parts)


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise NoAnswer("its answer is no JSON") from None
    if not isinstance(value, dict):
        raise NoAnswer("its answer is no JSON object")
    return value


def _error_code(error: HTTPError) -> str | None:
    """The error code in the body of an answer, as far as it is one (RFC 6749 section 5.2)."""
    try:
        code = _object(error.read(MAX_ANSWER)).get("error")
    except (NoAnswer, OSError, http.client.HTTPException):
        return None
    plain = isinstance(code, str) and code.isascii() and code.replace("_", "").isalnum()
    return code[:64] if isinstance(code, str) and plain else None
