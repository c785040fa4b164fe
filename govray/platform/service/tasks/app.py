"""The proxy's application: everything below ``/tasks/ID/`` on the task's own host.

It shares the store with the service and nothing else: none of its routes, cookies or tokens. HTTP
and WebSockets are forwarded by aiohttp's client, which does both and comes with Ray; nothing is
kept of what passes. Bodies stream both ways within `ProxyBounds`.

The client follows no redirect and keeps no cookie. It reads no proxy from the environment and
unpacks nothing: what the browser gets is what the program sent.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp
from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from govray.platform.service.http import problems
from govray.platform.service.http.limits import Buckets, Limits
from govray.platform.service.http.origin import TaskOrigins
from govray.platform.service.http.problems import CatchAll, Problem, details
from govray.platform.service.tasks.gate import TaskGate
from govray.platform.service.tasks.headers import COOKIE
from govray.platform.service.tasks.http_forwarding import forward_http, forward_socket
from govray.platform.service.tasks.tickets import SESSION_HOURS

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ProxyBounds:
    """What one proxy forwards.

    Attributes:
        max_body: Bytes of a request's body: a file that is uploaded.
        time_limit: Seconds until a response must have begun.
        max_message: Bytes of a WebSocket's message.
        recheck_seconds: How often an open WebSocket's session is looked at again.
        rate: Guesses of a session, a second and address.
        burst: Guesses at once.
    """

    max_body: int = 64 * MIB
    time_limit: float = 60.0
    max_message: int = 16 * MIB
    max_sockets: int = 256
    recheck_seconds: float = 10.0
    rate: float = 10.0
    burst: int = 100


class Forwarding:
    """Every request below a task's path, as an ASGI application."""

    def __init__(self, app: Starlette) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        task: str = scope["path_params"]["task"]
        gate: TaskGate = self.app.state.gate
        endpoint = await gate.endpoint(request, task)
        if not scope["path_params"]["path"] and request.method == "GET":
            landing = f"/tasks/{task}/{endpoint.landing}"
            await RedirectResponse(landing, status_code=303)(scope, receive, send)
            return
        await forward_http(self.app.state.client, endpoint, request, send)


async def _respond(_request: Request, error: Exception) -> Response:
    problem = problems.of(error) or Problem(500, "Internal server error", "The proxy failed")
    return problems.response(problem)


def create_tasks_app(
    engine: Engine,
    origins: TaskOrigins,
    *,
    bounds: ProxyBounds | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Starlette:
    """The proxy over one storage. ``engine``: of the store that has the queue and the tickets;
    closed with the application."""
    limit = bounds or ProxyBounds()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=1024, limit_per_host=256),
            timeout=aiohttp.ClientTimeout(total=None, connect=10),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        ) as client:
            app.state.client = client
            yield
        engine.dispose()

    async def enter(request: Request) -> Response:
        task = request.path_params["task"]
        gate: TaskGate = request.app.state.gate
        secret = await gate.enter(request, task, request.query_params.get("ticket", ""))
        path = f"/tasks/{task}/"
        response = RedirectResponse(
            path, status_code=303, headers={"Referrer-Policy": "no-referrer"}
        )
        response.set_cookie(
            COOKIE,
            secret,
            max_age=SESSION_HOURS * 3600,
            path=path,
            secure=origins.secure,
            httponly=True,
            samesite="lax",  # strict would not survive the way here from the service's page
        )
        return response

    async def socket(websocket: WebSocket) -> None:
        gate: TaskGate = websocket.app.state.gate
        task = websocket.path_params["task"]

        async def look() -> None:
            await gate.endpoint(websocket, task)

        try:
            endpoint = await gate.endpoint(websocket, task)
            if app.state.sockets >= limit.max_sockets:
                raise Problem(503, "Busy", "Too many WebSockets are open", "Close some pages")
        except Problem as problem:
            await websocket.send_denial_response(problems.response(problem))
            return
        app.state.sockets += 1
        try:
            await forward_socket(
                app.state.client,
                endpoint,
                websocket,
                max_message=limit.max_message,
                look=look,
                every=limit.recheck_seconds,
            )
        finally:
            app.state.sockets -= 1

    app = Starlette(lifespan=lifespan, exception_handlers={HTTPException: _respond})
    app.state.sockets = 0
    app.state.gate = TaskGate(
        engine, origins, Buckets(limit.rate, limit.burst, time.monotonic), clock
    )
    app.router.routes.extend(
        [
            Route("/tasks/{task}/enter", enter, methods=["GET"]),
            Route("/tasks/{task}/{path:path}", Forwarding(app)),
            WebSocketRoute("/tasks/{task}/{path:path}", socket),
        ]
    )
    app.router.redirect_slashes = False
    app.add_middleware(CatchAll, answering=details)

    async def known(_request: Request) -> bool:
        return True  # who has no session is refused before a byte of the body is read

    app.add_middleware(
        Limits,
        max_body=limit.max_body,
        max_stranger_body=limit.max_body,
        known=known,
        time_limit=limit.time_limit,
    )
    return app
