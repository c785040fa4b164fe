"""Numbers for Prometheus: requests and their latency, by route template and status.

No label names a user, a token, an address or a corpus. Labels are the application's routes, HTTP's
methods and status codes, so their number is bounded. Latency is the time until the response begins;
a stream lasts as long as its reader stays.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from govray import __version__, traces

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

REQUESTS = ("govray_http_requests", "Requests answered")
SECONDS = ("govray_http_request_seconds", "Seconds until the response began")
STREAMS = ("govray_http_streams", "Live streams that are open")
INDEXED = ("govray_index_pass_timestamp_seconds", "When the runs were last looked through")
LEFT_OUT = ("govray_index_left_out", "Folders that this look left out, with the reason in the log")
LABELS = ("method", "route", "status")
LABELS_OF_SECONDS = ("method", "route")


def route_template(scope: Any) -> str:
    """``/v1/runs/{id}`` of a request that was routed, else ``unmatched``."""
    # FastAPI keeps an included router's routes as they are; the prefix is in the context.
    context = (scope.get("fastapi") or {}).get("effective_route_context")
    template = getattr(context or scope.get("route"), "path_format", None)
    return template or getattr(scope.get("route"), "path", None) or "unmatched"


class Measures(Protocol):
    """Where one application's numbers go."""

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count one response and the ``seconds`` until it began."""

    def streams(self, number: int) -> None:
        """Say how many live streams are open."""

    def text(self) -> bytes | None:
        """All numbers in Prometheus' text format; None where another program exposes them."""


class Registered:
    """The numbers of one process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(*REQUESTS, LABELS, registry=self.registry)
        self._seconds = Histogram(
            *SECONDS, LABELS_OF_SECONDS, buckets=BUCKETS, registry=self.registry
        )
        self._streams = Gauge(*STREAMS, registry=self.registry)
        self._indexed: tuple[Gauge, Gauge] | None = None
        build = Gauge("govray_build_info", "1", ("version",), registry=self.registry)
        build.labels(__version__).set(1)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = _labels(scope)
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def streams(self, number: int) -> None:
        self._streams.set(number)

    def indexed(self, left_out: int) -> None:
        """Say that the indexer of this process has looked through all runs, just now."""
        self._indexed = self._indexed or (
            Gauge(*INDEXED, registry=self.registry),
            Gauge(*LEFT_OUT, registry=self.registry),
        )
        self._indexed[0].set_to_current_time()
        self._indexed[1].set(left_out)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Forwarded:
    """The numbers of a replica, given to instruments that its host exposes.

    Several replicas behind one address cannot answer ``/metrics``: each answer would be another
    replica's, and rates over them would be wrong.

    Args:
        instrument: Makes an instrument of a kind (``Counter``, ``Histogram``, ``Gauge``) as
            `ray.util.metrics` has them, with ``tag_keys`` and, for a histogram, ``boundaries``.
    """

    def __init__(self, instrument: Any) -> None:
        self._requests = instrument.Counter(*REQUESTS, tag_keys=LABELS)
        self._seconds = instrument.Histogram(
            *SECONDS, boundaries=list(BUCKETS), tag_keys=LABELS_OF_SECONDS
        )
        self._streams = instrument.Gauge(*STREAMS)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = _labels(scope)
        self._requests.inc(tags={"method": method, "route": route, "status": str(status)})
        self._seconds.observe(seconds, tags={"method": method, "route": route})

    def streams(self, number: int) -> None:
        self._streams.set(number)

    def text(self) -> None:
        """See `Measures.text`: the host exposes them."""


def _labels(scope: Scope) -> tuple[str, str]:
    """Method and route template of a request, from bounded sets."""
    method = scope["method"] if scope["method"] in _METHODS else "other"
    return method, route_template(scope)


class Measured:
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


# A span for every request, below the caller's own where it sends a ``traceparent``.
#
# The layer is there only where traces are on (`govray.traces`). A request is named by its route's
# template, as in logs.


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
