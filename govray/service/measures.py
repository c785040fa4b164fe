"""``/metrics`` for Prometheus: requests and their latency, by route template and status.

No label names a user, a token, an address or a corpus: a label's values are the routes of the
application, the methods of HTTP and status codes, so their number is bounded. Latency is the time
until the response begins; a stream lasts as long as its reader stays.
"""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from govray import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


def route_template(scope: Any) -> str:
    """``/v1/trials/{id}`` of a request that was routed, else ``unmatched``."""
    # FastAPI keeps an included router's routes as they are; the prefix is in the context.
    context = (scope.get("fastapi") or {}).get("effective_route_context")
    template = getattr(context or scope.get("route"), "path_format", None)
    return template or getattr(scope.get("route"), "path", None) or "unmatched"


class Measures:
    """The numbers of one application, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter(
            "govray_http_requests", "Requests answered", labels, registry=self.registry
        )
        self._seconds = Histogram(
            "govray_http_request_seconds",
            "Seconds until the response began",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.streams = Gauge(
            "govray_http_streams", "Live streams that are open", registry=self.registry
        )
        build = Gauge("govray_build_info", "1", ("version",), registry=self.registry)
        build.labels(__version__).set(1)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count one response."""
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = route_template(scope)
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """All numbers in Prometheus' text format."""
        return generate_latest(self.registry)


class Measured:
    """The layer that counts."""

    def __init__(self, app: ASGIApp, measures: Measures) -> None:
        self.app = app
        self.measures = measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.measures.count(scope, message["status"], time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, counting)
