"""Signing in and out: a bearer token, typed once, kept in a cookie.

The cookie is HttpOnly, so that no script reads it, and SameSite=Strict, so that no other site's
request carries it; over HTTPS it is Secure. A form that changes something is taken from our own
pages only: by ``Sec-Fetch-Site``, or by ``Origin`` where a browser does not send that. `access.py`
reads the cookie, and decides what it is worth.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from govray.service.access import COOKIE, AccessGate
from govray.service.caller import PUBLIC
from govray.service.pages.rendering import HEADERS, render
from govray.service.problems import Problem

DAYS = 7

router = APIRouter()


@router.get("/sign-in")
def form(request: Request, next: Annotated[str, Query(max_length=2048)] = "/") -> HTMLResponse:
    return render(request, PUBLIC, "sign_in.html", next=own_path(next), error="")


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    from_own_page(request)
    fields = parse_qs((await request.body()).decode("latin-1"), max_num_fields=8)
    text = fields.get("token", [""])[0].strip()
    following = own_path(fields.get("next", ["/"])[0])
    error = "Type a token."
    if text:
        gate: AccessGate = request.app.state.gate
        try:
            await gate.caller(_bearing(request, text))
        except Problem as problem:
            error = f"{problem.detail}. {problem.do or ''}"
        else:
            response = RedirectResponse(following, status_code=303, headers=HEADERS)
            response.set_cookie(
                COOKIE,
                text,
                max_age=DAYS * 86_400,
                path="/",
                secure=request.url.scheme == "https",
                httponly=True,
                samesite="strict",
            )
            return response
    return render(request, PUBLIC, "sign_in.html", status=401, next=following, error=error)


@router.post("/sign-out")
def sign_out(request: Request) -> Response:
    from_own_page(request)
    response = RedirectResponse("/", status_code=303, headers=HEADERS)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


def _bearing(request: Request, token: str) -> Request:
    """The request as it would be with this token in its header."""
    kept = [
        (name, value)
        for name, value in request.scope["headers"]
        if name not in (b"authorization", b"cookie")
    ]
    sent = (b"authorization", b"Bearer " + token.encode("latin-1", "replace"))
    return Request({**request.scope, "headers": [*kept, sent]})


def own_path(text: str) -> str:
    """Where to go next: a path of this service, or the first page for anything else."""
    parts = urlsplit(text)
    plain = text.startswith("/") and not text.startswith(("//", "/\\")) and "\\" not in text
    printable = text.isprintable()
    return text if plain and printable and not parts.scheme and not parts.netloc else "/"


def from_own_page(request: Request) -> None:
    """Refuse a form that another site sent.

    Raises:
        Problem: 403.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        own = site == "same-origin"
    else:
        own = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not own:
        raise Problem(
            403,
            "Another site",
            "This form was not sent by a page of this service",
            "Open this service yourself and try again",
        )
