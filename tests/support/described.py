"""Answers of services, held against the description: no other statuses, and no other headers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from govray.platform.service.http.prometheus import route_template
from govray.platform.service.identity.request_log import RequestIds
from tests.support.answered import ANSWERED, DECLARED, told

HEADERS = ("etag", "idempotency-replayed", "location", "retry-after")
"""What the description has where an answer does."""
ROUTES = ("/v1/", "/metrics")

_paths: dict[tuple[bool, bool], dict[str, Any]] = {}
"""What settings change of a description → its paths, which are made once."""


@contextmanager
def held_to_description() -> Iterator[set[str]]:
    """Watches all services of this process. Yields what they answered that is not described."""
    found: set[str] = set()
    answer = RequestIds.__call__

    async def watched(self: RequestIds, scope: Scope, receive: Receive, send: Send) -> None:
        async def looking(message: Message) -> None:
            if message["type"] == "http.response.start":
                found.update(undescribed(scope, message["status"], Headers(raw=message["headers"])))
            await send(message)

        await answer(self, scope, receive, looking)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestIds, "__call__", watched)
        yield found


def undescribed(scope: Scope, status: int, headers: Headers) -> Iterator[str]:
    """What an answer has that its operation's description lacks."""
    method = "get" if scope["method"] == "HEAD" else scope["method"].lower()
    route = route_template(scope)
    operation = described(scope["app"]).get(route, {}).get(method)
    if operation is None or status == 405 or not route.startswith(ROUTES):
        return  # a page, a method that is not there, or a test's own route
    if status == 413 and "requestBody" not in operation:
        return  # a body that nobody reads
    name = f"{method.upper()} {route}"
    answer = operation["responses"].get(str(status))
    told[ANSWERED].add(f"{name} {status}")
    if answer is None:
        yield f"{name} answered {status}"
        return
    known = {each.lower() for each in answer.get("headers", ())}
    for each in HEADERS:
        if each in headers and each not in known:
            yield f"{name} answered {status} with {each}"


def described(app: FastAPI) -> dict[str, Any]:
    settings = app.state.settings
    key = settings.auth, bool(settings.hosts)
    if key not in _paths:
        _paths[key] = app.openapi()["paths"]
        told[DECLARED].update(
            f"{method.upper()} {path} {status}"
            for path, item in _paths[key].items()
            for method, operation in item.items()
            for status in operation["responses"]
            if path.startswith(ROUTES)
        )
    return _paths[key]
