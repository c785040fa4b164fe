"""Errors as problem details (RFC 9457): what is wrong, where, and what to do.

Every error has this form, the framework's own too. An error that nobody foresaw is a 500 with an
id and nothing else; the log has the traceback under the same id. A body never holds a traceback,
a path of the server or a token.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import DataError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from govray.errors import (
    CouldNotCheck,
    Damaged,
    GovrayError,
    InfrastructureFailed,
    Malformed,
    Refused,
    Untrusted,
    UsageError,
    VerificationFailed,
)
from govray.governance.formats.field_errors import field_errors
from govray.platform.service.http.methods import allowed

log = logging.getLogger("govray.platform.service")

MEDIA_TYPE = "application/problem+json"
_TYPES = "https://govray.dev/problems/"


class Problem(HTTPException):
    """An error that the caller is told of.

    Args:
        title: What kind of problem, the same for every occurrence; its slug is the ``type``.
        refused: The audit log has it. 401 and 403 are; a 404 that hides something says so.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        do: str | None = None,
        *,
        refused: bool | None = None,
        headers: Mapping[str, str] | None = None,
        errors: list[dict[str, str]] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.title = title
        self.do = do
        self.refused = status in (401, 403) if refused is None else refused
        self.errors = errors

    def body(self, instance: str | None = None) -> dict[str, Any]:
        fields = {
            "type": _TYPES + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-"),
            "title": self.title,
            "status": self.status_code,
            "detail": self.detail,
            "do": self.do,
            "instance": instance,
            "errors": self.errors,
        }
        return {key: value for key, value in fields.items() if value is not None}


class FieldProblem(BaseModel):
    """What is wrong with one field of a request."""

    field: str = Field(examples=["query.limit"])
    message: str


class ProblemDetails(BaseModel):
    """RFC 9457 problem details."""

    type: str
    title: str
    status: int
    detail: str
    do: str | None = None
    instance: str | None = Field(default=None, description="The id that the server's log has.")
    errors: list[FieldProblem] | None = None


def not_found(what: str, name: str, do: str | None = None, *, hidden: bool = False) -> Problem:
    """404 for ``what`` named ``name``; ``hidden``: there is one, of which the caller may not know.
    Both read the same. The second is a refused access, so the audit log has it."""
    detail = f"There is no {what} {name[:200]!r} that you may read"
    return Problem(404, "Not found", detail, do, refused=hidden)


def not_allowed(detail: str, do: str | None = None) -> Problem:
    """403: the caller is known, and may not."""
    return Problem(403, "Not allowed", detail, do)


def refused(detail: str, do: str | None = None) -> Problem:
    """409: what is asked contradicts what is recorded, or how the service runs."""
    return Problem(409, "Refused", detail, do)


def unprocessable(detail: str, do: str | None = None) -> Problem:
    """422 for a whole request, or for what the detail names."""
    return Problem(422, "Not valid", detail, do)


def not_valid(field: str, what: str, do: str | None = None) -> Problem:
    """422 for one field of a request, such as ``body.file``."""
    errors = [{"field": field, "message": what}]
    return Problem(422, "Not valid", f"{field}: {what}", do, errors=errors)


def response(problem: Problem, instance: str | None = None) -> JSONResponse:
    return JSONResponse(
        problem.body(instance),
        status_code=problem.status_code,
        headers=dict(problem.headers or {}),
        media_type=MEDIA_TYPE,
    )


Answering = Callable[[Scope, Problem, str | None], Response]
"""Makes the response that tells of a problem: details, or a page for who asked for one."""


def details(_scope: Scope, problem: Problem, instance: str | None) -> Response:
    """Problem details, whoever asks."""
    return response(problem, instance)


def of(error: Exception) -> Problem | None:
    """What a caller is told of ``error``, or None if it is ours alone to know."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        title = _phrase(error.status_code)
        return Problem(
            error.status_code,
            title,
            _DETAILS.get(error.status_code, title),
            _ADVICE.get(error.status_code),
            headers=error.headers,
        )
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, DataError):  # PostgreSQL holds no U+0000
        return Problem(400, "Malformed", "The store can't hold a value of this")
    if getattr(getattr(error, "orig", None), "sqlstate", None) == _CANCELED:
        return Problem(
            503,
            "Too slow",
            "A query took longer than the service waits, and was ended",
            "Ask for less at once, or try again",
            headers={"Retry-After": "5"},
        )
    if isinstance(error, (*_UNAVAILABLE, InfrastructureFailed)):
        return Problem(
            503,
            "The store is not available",
            "The store did not answer",
            "Try again in some seconds",
            headers={"Retry-After": "5"},
        )
    # What is damaged in the store is ours to know, and a 500.
    if isinstance(error, GovrayError) and not isinstance(error, Damaged):
        for kind, status, title in _STATUSES:
            if isinstance(error, kind):
                # Where something lies on the server is not the caller's business.
                place = error.where if error.where and "/" not in error.where else None
                detail = f"{place}: {error.what}" if place else error.what
                return Problem(status, title, detail, error.do)
    return None


_CANCELED = "57014"
"""PostgreSQL's ``query_canceled``: here by ``statement_timeout``."""

_UNAVAILABLE = (OperationalError, InterfaceError, PoolTimeout)

_STATUSES: tuple[tuple[type[GovrayError], int, str], ...] = (
    (Malformed, 400, "Malformed"),
    (VerificationFailed, 422, "Verification failed"),
    (Untrusted, 422, "Not trusted"),
    (CouldNotCheck, 422, "Could not check"),
    (Refused, 409, "Refused"),
    (UsageError, 400, "Usage"),
)

_DETAILS = {
    404: "There is nothing at this address",
    405: "This address does not take this method",
}
_ADVICE = {
    404: "See /v1/openapi.json for the addresses",
    405: "See the Allow header for those it takes",
}


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase.capitalize()
    except ValueError:
        return "Error"


def _invalid(error: RequestValidationError) -> Problem:
    """422 that names each field, with its place first. Values are not repeated."""
    errors = [{"field": entry.field, "message": entry.what} for entry in field_errors(error)]
    first = errors[0] if errors else {"field": "request", "message": "not valid"}
    return Problem(
        422,
        "Not valid",
        f"{first['field']}: {first['message']}",
        "Mend the named fields; /v1/openapi.json has the schema",
        errors=errors,
    )


async def _respond(request: Request, error: Exception) -> JSONResponse:
    problem = of(error)
    if problem is None:
        raise error
    if problem.status_code == 405:
        problem.headers = {"Allow": allowed(request.app, request.scope)}
    if problem.refused:
        await run_in_threadpool(request.app.state.refusals.add, request, problem.status_code)
    elif problem.status_code >= 500:
        log.warning("%s %s: %s", request.method, request.url.path, error)
    return response(problem)


class CatchAll:
    """The innermost layer: what no handler foresaw becomes a 500 with an id."""

    def __init__(self, app: ASGIApp, answering: Answering = details) -> None:
        self.app = app
        self.answering = answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except Exception as error:
            problem = of(error)
            instance = None
            if problem is None:
                instance = f"urn:govray:error:{secrets.token_hex(8)}"
                log.exception("%s %s %s", instance, scope["method"], scope["path"])
                problem = Problem(
                    500,
                    "Internal server error",
                    "The server failed at this request",
                    "Tell the operator the instance; the server's log has the rest",
                )
            if started:
                raise  # The response is under way: the connection has to break.
            await self.answering(scope, problem, instance)(scope, receive, send)


def install(app: FastAPI) -> None:
    """Give every error of ``app`` the form of a problem, and its description too."""
    for kind in (HTTPException, RequestValidationError, GovrayError, DataError, *_UNAVAILABLE):
        app.add_exception_handler(kind, _respond)


def described(description: str) -> dict[str, Any]:
    """How the description has an error."""
    reference = {"$ref": "#/components/schemas/ProblemDetails"}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": reference}}}


RESPONSES: dict[int | str, dict[str, Any]] = {
    304: {"description": "You have these bytes."},
    400: described("The request is malformed."),
    401: described("No token where one is needed, or one that is not accepted."),
    403: described("The role or scope does not allow it."),
    404: described("There is no such thing that the caller may read."),
    409: described("Refused: the request contradicts what is recorded."),
    412: described("It was changed since the ETag in If-Match."),
    413: described("The body is larger than the service reads."),
    416: described("The file does not reach the range; `Content-Range` has its size."),
    421: described("The service does not answer to this host's name."),
    422: described("A field is not valid, or the given bytes do not verify."),
    429: described("More requests than the rate allows; see Retry-After."),
    500: described("The server failed; `instance` is in its log."),
    502: described("What the request is passed on to did not answer."),
    503: described("Too slow, too busy, or without its store; see Retry-After."),
}
"""What a route may answer besides its own."""
