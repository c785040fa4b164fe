"""Methods of HTTP that no route spells out: ``HEAD``, and the ``Allow`` header of a 405 (RFC 9110).

``HEAD`` is answered wherever ``GET`` is: the same checks, the same status and headers, no body. A
live stream ends with its headers.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_ROUTED = ("route", "fastapi", "state")
"""What routing leaves in a scope; the layers outside count and answer by it."""


class HeadMethod:
    """The layer that answers ``HEAD`` with the head of what ``GET`` answers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        inner = {**scope, "method": "GET"}
        answered = False

        async def sending(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                scope.update({key: inner[key] for key in _ROUTED if key in inner})
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        async def receiving() -> Message:
            # A client that goes on sending is told that nobody reads.
            return {"type": "http.disconnect"} if answered else await receive()

        await self.app(inner, receiving, sending)


def allowed(app: FastAPI, scope: Scope) -> str:
    """The methods that the address of a request takes, as ``Allow`` has them."""
    found = []
    for method in _METHODS:
        asked = {
            "type": "http",
            "method": method,
            "path": scope["path"],
            "root_path": scope.get("app_root_path", scope.get("root_path", "")),
            "headers": [],
        }
        for route in app.router.routes:
            if route.matches(asked)[0] == Match.FULL:
                # Static files match any method and take one.
                if method == "GET" or not isinstance(route, Mount):
                    found.append(method)
                break
    if "GET" in found:
        found.insert(1, "HEAD")
    return ", ".join(found)
