"""Request ids, and logs as JSON: one object a line, with time, level and the request's id.

Every answer carries ``X-Request-Id``: the caller's own, if it is one, or a new one. What is logged
while a request is answered has its id, so lines of several services can be joined.

A line names a request by its route's template. It never has a token, the text of a query, an
address that was asked for, or a body. What looks like a token is cut out of messages too.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from govray.platform.service.http.prometheus import route_template
from govray.platform.service.identity.audit_log import without_tokens

HEADER = b"x-request-id"
LONGEST_MESSAGE = 8192
FACTS = ("method", "route", "status", "seconds", "run", "entry", "before", "after", "job")
"""What a record may say beside its message: ids, states and counts."""

log = logging.getLogger("govray.platform.service.requests")

_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_request: ContextVar[str | None] = ContextVar("govray_request", default=None)


class RequestIds:
    """The layer that gives every request its id, and logs it when it is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == HEADER]
        known = len(given) == 1 and _ID.fullmatch(given[0])
        id_ = given[0] if known else secrets.token_hex(8).encode()
        began, status = time.perf_counter(), 0

        async def marking(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), (HEADER, id_)]}
            await send(message)

        token = _request.set(id_.decode())
        try:
            await self.app(scope, receive, marking)
        finally:
            if log.isEnabledFor(logging.INFO):
                named = scope.get("path_params") or {}
                log.info(
                    "answered",
                    extra={
                        "method": scope["method"],
                        "route": route_template(scope),
                        "status": status,
                        "seconds": round(time.perf_counter() - began, 4),
                        "run": named.get("run"),
                    },
                )
            _request.reset(token)


class JsonFormat(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _shown(record.getMessage()),
            "request": _request.get(),
        }
        for name in FACTS:
            said[name] = getattr(record, name, None)
        if record.exc_info and record.exc_info[1] is not None:
            said["error"] = _shown(_trace(record.exc_info[1]))
        found = {name: value for name, value in said.items() if value is not None}
        return json.dumps(found, ensure_ascii=True)


def log_as_json(stream: IO[str] | None = None) -> None:
    """Let everything that this process logs, uvicorn's too, be JSON on standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormat())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    for name in ("govray", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
    for name in ("govray", "govray.platform.service", "uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers[:] = []
        logging.getLogger(name).propagate = True


def _shown(text: str) -> str:
    return without_tokens(text[:LONGEST_MESSAGE])


def _trace(error: BaseException) -> str:
    """The frames, and the error's own text without what SQLAlchemy adds: the values of a query."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{frames}{type(error).__name__}: {str(error).partition('[SQL:')[0].strip()}"
