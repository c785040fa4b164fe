"""The cookies of the pages: who is signed in, and which sign-in at a provider is under way.

Over https the name begins with ``__Host-``. So a browser takes it only from this very host, with
Secure, and no neighbour in the same domain can plant one. Only such a cookie counts there. Both are
HttpOnly. The session's is SameSite=Strict. That of a sign-in under way is Lax: the provider's
redirect to the callback comes from another site and has to carry it.

Source: RFC 6265bis sections 4.1.3.2 (``__Host-``) and 5.6.7 (SameSite).
"""

from __future__ import annotations

from typing import Literal

from fastapi import Request, Response

COOKIE = "govray_session"
ATTEMPT = "govray_sign_in"
SECURE = "__Host-"


def read(request: Request, name: str) -> str | None:
    """The cookie ``name`` of a request, if it has one that counts."""
    if "cookie" not in request.headers:
        return None
    secure = request.cookies.get(SECURE + name)
    if secure or request.url.scheme == "https":
        return secure or None
    return request.cookies.get(name) or None


def write(
    response: Response,
    name: str,
    value: str,
    *,
    secure: bool,
    seconds: int,
    samesite: Literal["lax", "strict"] = "strict",
) -> None:
    """Set the cookie ``name``. ``secure``: whether it goes over https alone. ``seconds``: how long
    a browser keeps it."""
    response.set_cookie(
        SECURE + name if secure else name,
        value,
        max_age=seconds,
        path="/",
        secure=secure,
        httponly=True,
        samesite=samesite,
    )


def remove(request: Request, response: Response, name: str) -> None:
    """Remove the cookie ``name``, in either form, if ``request`` has it."""
    for each in {name, SECURE + name} & request.cookies.keys():
        response.delete_cookie(
            each, path="/", secure=each != name, httponly=True, samesite="strict"
        )
