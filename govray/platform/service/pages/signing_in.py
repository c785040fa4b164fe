"""Signing in and out: by a token, typed once, or at an identity provider (``provider_sign_in.py``).

Both make a session, whose secret is in a cookie and nowhere else (`session_cookie`). The token is
not kept. Signing out ends the session, so that a copy of the cookie is worth nothing. A form that
changes something is taken from our own pages only.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from govray.platform.service.http.problems import Problem
from govray.platform.service.identity import session_cookie
from govray.platform.service.identity.access import AccessGate
from govray.platform.service.identity.browser_sessions import LASTS
from govray.platform.service.identity.caller import PUBLIC
from govray.platform.service.identity.session_cookie import COOKIE, FORMER
from govray.platform.service.pages.form_fields import form_of, from_own_page
from govray.platform.service.pages.rendering import HEADERS, page

router = APIRouter()


@router.get("/sign-in")
def form(request: Request, next: Annotated[str, Query(max_length=2048)] = "/") -> HTMLResponse:
    return _form(request, own_path(next))


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    fields = await form_of(request)
    text = fields.get("token", "").strip()
    following = own_path(fields.get("next", "/"))
    error = "Type a token."
    if text:
        gate: AccessGate = request.app.state.gate
        try:
            accepted = await gate.typed(request, text)
        except Problem as problem:
            error = f"{problem.detail}. {problem.do or ''}"
        else:
            response = RedirectResponse(following, status_code=303, headers=HEADERS)
            secret = await gate.begin(accepted)
            await give(request, response, secret, secure=request.url.scheme == "https")
            return response
    return _form(request, following, status=401, error=error)


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    from_own_page(request)
    response = RedirectResponse("/", status_code=303, headers=HEADERS)
    await _end_former(request)
    session_cookie.remove(request, response, COOKIE, FORMER)
    return response


async def give(request: Request, response: Response, secret: str, *, secure: bool) -> None:
    """Give the browser a session. One that it had before ends, whoever's it was."""
    await _end_former(request)
    session_cookie.remove(request, response, FORMER)
    seconds = int(LASTS.total_seconds())
    session_cookie.write(response, COOKIE, secret, secure=secure, seconds=seconds)


async def _end_former(request: Request) -> None:
    gate: AccessGate = request.app.state.gate
    former = session_cookie.read(request, COOKIE)
    if former is not None:
        await gate.end(former)


def _form(request: Request, following: str, *, status: int = 200, error: str = "") -> HTMLResponse:
    flow = request.app.state.code_flow
    provider = flow.provider if flow else None
    return page(
        request,
        PUBLIC,
        "sign_in.html",
        status=status,
        next=following,
        error=error,
        provider=provider,
    )


def own_path(text: str) -> str:
    """Where to go next: a path of this service, or the first page for anything else."""
    parts = urlsplit(text)
    plain = text.startswith("/") and not text.startswith(("//", "/\\")) and "\\" not in text
    printable = text.isprintable()
    return text if plain and printable and not parts.scheme and not parts.netloc else "/"
