"""Signing in at the identity provider: there and back (`code_flow`).

The way back is a navigation that another site began, so a browser would not send a strict cookie
with a redirect from here. The callback answers with a page of our own that goes on by itself.

What goes wrong is said in our words. Nothing of the provider's text is shown: whoever writes a link
could write that too.
"""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool

from govray.platform.service.http.problems import Problem, not_found
from govray.platform.service.identity import session_cookie, sign_in_attempts
from govray.platform.service.identity.access import AccessGate
from govray.platform.service.identity.browser_sessions import LASTS
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.code_flow import CALLBACK, LONGEST_CODE, CodeFlow
from govray.platform.service.identity.provider_address import NoAnswer
from govray.platform.service.identity.session_cookie import ATTEMPT
from govray.platform.service.identity.sign_in_attempts import Attempt
from govray.platform.service.identity.tokens import Accepted, NotAccepted
from govray.platform.service.pages.rendering import HEADERS, page
from govray.platform.service.pages.signing_in import give, own_path

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

router = APIRouter()

Short = Annotated[str | None, Query(max_length=2048)]


@router.get("/sign-in/provider")
async def begin(request: Request, next: Annotated[str, Query(max_length=2048)] = "/") -> Response:
    flow = _flow(request)
    gate: AccessGate = request.app.state.gate
    gate.begin_attempt(request)

    def begun() -> tuple[Attempt, str]:
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

    def done() -> tuple[Attempt, Caller]:
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
    accepted = Accepted(found, request.app.state.clock() + LASTS)
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
