"""Signing in and out: by a token, typed once, or at an identity provider.

Both make a session, whose secret is in a cookie and nowhere else (`session_cookie`). The token is
not kept. Signing out ends the session, so that a copy of the cookie is worth nothing. A form that
changes something is taken from our own pages only.
"""

from __future__ import annotations

import logging
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool

from govray.platform.service.http.problems import Problem, not_found
from govray.platform.service.identity import session_cookie, sign_in_attempts
from govray.platform.service.identity.access import AccessGate
from govray.platform.service.identity.browser_sessions import LASTS
from govray.platform.service.identity.caller import PUBLIC, Caller
from govray.platform.service.identity.code_flow import CALLBACK, LONGEST_CODE, CodeFlow
from govray.platform.service.identity.provider_address import NoAnswer
from govray.platform.service.identity.session_cookie import ATTEMPT, COOKIE
from govray.platform.service.identity.sign_in_attempts import BrowserSignIn
from govray.platform.service.identity.tokens import AcceptedToken, NotAccepted
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
    session_cookie.remove(request, response, COOKIE)
    return response


async def give(request: Request, response: Response, secret: str, *, secure: bool) -> None:
    """Give the browser a session. One that it had before ends, whoever's it was."""
    await _end_former(request)
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


# Signing in at the identity provider: there and back (`code_flow`).
#
# The way back is a navigation that another site began, so a browser would not send a strict cookie
# with a redirect from here. The callback answers with a page of our own that goes on by itself.
#
# What goes wrong is said in our words. Nothing of the provider's text is shown: whoever writes a
# link could write that too.


log = logging.getLogger("govray.platform.service")

AGAIN = "Sign in again"

REFUSALS = {
    "access_denied": "The identity provider did not let you in, or you cancelled there",
    "login_required": "The identity provider asks you to sign in there first",
    "interaction_required": "The identity provider asks you to sign in there first",
    "consent_required": "The identity provider waits for your consent",
    "account_selection_required": "The identity provider asks you to choose an account",
    "temporarily_unavailable": "The identity provider is busy",
    "server_error": "The identity provider failed",
    "unauthorized_client": "The identity provider does not know this service",
    "invalid_scope": "The identity provider does not give what this service asks for",
    "invalid_request": "The identity provider did not understand this service",
    "unsupported_response_type": "The identity provider did not understand this service",
}
"""Error codes in words: RFC 6749 section 4.1.2.1, OpenID Connect Core 1.0 section 3.1.2.6."""


Short = Annotated[str | None, Query(max_length=2048)]


@router.get("/sign-in/provider")
async def begin(request: Request, next: Annotated[str, Query(max_length=2048)] = "/") -> Response:
    flow = _flow(request)
    gate: AccessGate = request.app.state.gate
    gate.begin_attempt(request)

    def begun() -> tuple[BrowserSignIn, str]:
        with Session(request.app.state.engine) as session:
            at = request.app.state.clock()
            attempt = sign_in_attempts.begin(session, own_path(next), at=at)
            session.commit()
        return attempt, flow.address(attempt)

    try:
        attempt, address = await run_in_threadpool(begun)
    except NoAnswer as error:
        raise _unanswered(error) from None
    response = RedirectResponse(address, status_code=303, headers=HEADERS)
    session_cookie.write(
        response,
        ATTEMPT,
        attempt.secret,
        secure=flow.secure,
        seconds=int(sign_in_attempts.LASTS.total_seconds()),
        samesite="lax",
    )
    return response


@router.get(CALLBACK)
async def come_back(
    request: Request,
    state: Short = None,
    code: Annotated[str | None, Query(max_length=LONGEST_CODE)] = None,
    error: Short = None,
    iss: Short = None,
) -> HTMLResponse:
    flow = _flow(request)
    gate: AccessGate = request.app.state.gate
    secret = session_cookie.read(request, ATTEMPT)

    def done() -> tuple[BrowserSignIn, Caller]:
        with Session(request.app.state.engine) as session:
            at = request.app.state.clock()
            attempt = sign_in_attempts.take(session, secret or "", state or "", at=at)
            session.commit()
        if attempt is None:
            raise Problem(
                400,
                "Sign-in not known",
                "This sign-in was not begun in this browser, was used, or took over 10 minutes",
                AGAIN,
            )
        flow.check_issuer(iss)
        if error is not None or code is None:
            raise _refused(error)
        return attempt, flow.exchange(attempt, code)

    try:
        attempt, found = await run_in_threadpool(done)
    except NoAnswer as unanswered:
        raise _unanswered(unanswered) from None
    except NotAccepted as refused:
        raise Problem(401, "Not signed in", str(refused), AGAIN) from None
    accepted = AcceptedToken(found, request.app.state.clock() + LASTS)
    response = page(request, found, "signed_in.html", following=attempt.following)
    session_cookie.remove(request, response, ATTEMPT)
    await give(request, response, await gate.begin(accepted), secure=flow.secure)
    return response


def _flow(request: Request) -> CodeFlow:
    flow: CodeFlow | None = request.app.state.code_flow
    if flow is None or not request.app.state.settings.auth:
        raise not_found("sign-in at a provider", "here", "Sign in with a token")
    return flow


def _refused(error: str | None) -> Problem:
    said = REFUSALS.get(error or "", "The identity provider did not sign you in")
    return Problem(403, "Not signed in", said, AGAIN)


def _unanswered(error: NoAnswer) -> Problem:
    log.warning("sign-in at the identity provider: %s (%s)", error, error.error or "no code")
    return Problem(
        503,
        "The identity provider did not answer",
        f"It could not be asked who you are: {error}",
        "Try again in some seconds; its operator sees the reason in this service's log",
        headers={"Retry-After": "5"},
    )
