"""The register over HTTP, and nothing else: no page, no description, no way to read another's runs.

===========================================  ==================  ==============================
``POST /v1/register/submissions``            the service         what was accepted
``POST …/submissions/ID/attempts``           the queue           a number, and a secret's digest
``POST …/submissions/ID/posts``              an attempt          what it committed
``GET …/submissions/ID/runs/RUN``            an attempt          where a run stands
``GET …/submissions/ID``                     the queue           all of it
===========================================  ==================  ==============================

Service and queue have one token, the attempt its secret. Bodies are bounded before they are parsed,
and forms are strict. Errors are problem details (RFC 9457), as the service's are. They name no file
of this machine, and repeat no token.

It listens on loopback. Elsewhere it speaks TLS (`AttestorSettings`).
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy.exc import DBAPIError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from govray.errors import Malformed, Refused
from govray.governance.formats import canonical_json
from govray.governance.formats.document import Document, format_time
from govray.governance.submission.register_forms import (
    LARGEST,
    AcceptanceForm,
    AttemptForm,
    Flagged,
    OtherThanAccepted,
    PostForm,
)
from govray.platform.attestor.register import Register, UnknownSecret, Unregistered

_log = logging.getLogger(__name__)
_Form = TypeVar("_Form", bound=Document)
_Answer = tuple[int, dict[str, Any]]


def register_door(
    register: Register, token: str, root: str, clock: Callable[[], datetime]
) -> Starlette:
    """The application.

    Args:
        token: The service's.
        root: Digest of the attestor's trust root.
        clock: The attestor's: the only times that count.
    """

    def now() -> str:
        return format_time(clock())

    def check_service(request: Request) -> None:
        if not hmac.compare_digest(_bearer(request).encode(), token.encode()):
            raise UnknownSecret("the token is not the service's")

    async def accept(request: Request) -> _Answer:
        check_service(request)
        form = await _form(request, AcceptanceForm)
        return 200, (await run_in_threadpool(register.accept, form, root=root, at=now())).to_json()

    async def attempt(request: Request) -> _Answer:
        check_service(request)
        form = await _form(request, AttemptForm)
        opened = await run_in_threadpool(register.open, _submission(request), form, at=now())
        return 200, _told(opened.to_json())

    async def post(request: Request) -> _Answer:
        secret = _bearer(request)
        form = await _form(request, PostForm)
        stands = await run_in_threadpool(
            register.post, _submission(request), secret, form, at=now()
        )
        return 200, stands.to_json()

    async def run(request: Request) -> _Answer:
        at_most = request.query_params.get("at_most")
        if at_most is not None and not re.fullmatch(r"[0-9]{1,15}", at_most):
            raise Malformed("at_most is no step")
        stands = await run_in_threadpool(
            register.standing,
            _submission(request),
            _bearer(request),
            _named(request, "run"),
            at_most=None if at_most is None else int(at_most),
        )
        return 200, stands.to_json()

    async def show(request: Request) -> _Answer:
        check_service(request)
        return 200, await run_in_threadpool(_shown, register, _submission(request))

    below = "/v1/register/submissions"
    return Starlette(
        routes=[
            Route(below, _answered(accept), methods=["POST"]),
            Route(f"{below}/{{id}}/attempts", _answered(attempt), methods=["POST"]),
            Route(f"{below}/{{id}}/posts", _answered(post), methods=["POST"]),
            Route(f"{below}/{{id}}/runs/{{run}}", _answered(run), methods=["GET"]),
            Route(f"{below}/{{id}}", _answered(show), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _as_problem},
    )


def _shown(register: Register, submission: str) -> dict[str, Any]:
    """All that is registered of a submission but its posts, which are many, and its secrets."""
    runs = []
    for name in register.runs(submission):
        last, settled = register.last_commit(submission, name), register.attested(submission, name)
        runs.append(
            {"run": name, "ended": register.ended(submission, name) is not None}
            | ({"lastCommit": last.to_json()} if last else {})
            | ({"attested": settled.to_json()} if settled else {})
        )
    return {
        "accepted": register.accepted(submission).to_json(),
        "attempts": [_told(each.to_json()) for each in register.attempts(submission)],
        "runs": runs,
    }


def _told(attempt: dict[str, Any]) -> dict[str, Any]:
    """An attempt without the digest of its secret, which nobody needs to read."""
    return {name: value for name, value in attempt.items() if name != "secret"}


def _answered(handler: Callable[[Request], Awaitable[_Answer]]) -> Any:
    """An endpoint that answers with JSON, whatever comes."""

    async def endpoint(request: Request) -> Response:
        try:
            status, value = await handler(request)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            return _problem(error)
        return _json(value, status)

    return endpoint


async def _form(request: Request, kind: type[_Form]) -> _Form:
    """The body, which is read no further than `LARGEST`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise HTTPException(413)
    value = canonical_json.parse(bytes(body), limit=LARGEST, where="body")
    return kind.from_json(value, where="body")


def _submission(request: Request) -> str:
    return _named(request, "id")


def _named(request: Request, part: str) -> str:
    """A part of the address. None that is registered has other characters, or is longer."""
    name = str(request.path_params[part])
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,192}", name):
        raise Unregistered("there is nothing of this name")
    return name


def _bearer(request: Request) -> str:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise UnknownSecret("no token came")
    return secret


async def _as_problem(_request: Request, error: Exception) -> Response:
    return _problem(error)


_STATUSES: tuple[tuple[type[Exception], int, str], ...] = (
    (UnknownSecret, 401, "Not accepted"),
    (Unregistered, 404, "Not found"),
    (Flagged, 409, "Flagged"),
    (OtherThanAccepted, 412, "Not accepted"),
    (Malformed, 422, "Not valid"),
    (Refused, 409, "Refused"),
    (DBAPIError, 503, "The register is not available"),
)
_TOLD = (Unregistered, Flagged, Malformed, Refused)
"""Errors whose words are for the caller."""


def _problem(error: Exception) -> Response:
    status, title = next(
        ((status, title) for kind, status, title in _STATUSES if isinstance(error, kind)),
        (500, "Internal server error"),
    )
    if isinstance(error, HTTPException):
        status, title = error.status_code, error.detail
    fields: dict[str, Any] = {
        "type": "https://govray.dev/problems/"
        + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-"),
        "title": title,
        "status": status,
        "detail": title,
    }
    if isinstance(error, _TOLD):
        fields["detail"] = f"{error.where}: {error.what}" if error.where else error.what
        if error.do:
            fields["do"] = error.do
    if status >= 500:
        _log.error("the register failed", exc_info=error)
    return _json(fields, status, "application/problem+json")


def _json(value: dict[str, Any], status: int, kind: str = "application/json") -> Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(value, status, headers, media_type=kind)
