"""A span for every request, below the caller's own where it sends a ``traceparent``.

The layer is there only where traces are on (`govray.traces`). A request is named by its route's
template, as in logs.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from govray import traces
from govray.platform.service.http.prometheus import route_template

HEADER = b"traceparent"
PROBES = frozenset({"/metrics", "/v1/live", "/v1/ready", "/v1/health"})
"""What machines ask every few seconds."""


class TracedRequests:
    """The layer. Of several ``traceparent`` headers none counts (W3C Trace Context, 3.2.1)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self.app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == HEADER]
        parent = given[0].decode("latin-1") if len(given) == 1 else None
        with traces.span(scope["method"], parent=parent, kind="SERVER") as span:

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set(http_response_status__code=message["status"])
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            try:
                await self.app(scope, receive, noting)
            finally:
                route = route_template(scope)
                span.name(f"{scope['method']} {route}")
                span.set(http_request_method=scope["method"], http_route=route)
