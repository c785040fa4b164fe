"""A collector of traces on loopback: it speaks OTLP over HTTP, and keeps what it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from govray import traces


@dataclass
class Kept:
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    """``raw`` is every byte that was sent."""

    spans: list[Kept] = field(default_factory=list)
    raw: bytes = b""

    def named(self, name: str) -> list[Kept]:
        """The spans of a name, in order of arrival."""
        traces.flush()
        return [each for each in self.spans if each.name == name]


@contextmanager
def collecting(patch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Meanwhile, traces of this process are on."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            collector.raw += data
            sent = ExportTraceServiceRequest.FromString(data)
            for scope in (each for one in sent.resource_spans for each in one.scope_spans):
                collector.spans += [_kept(span) for span in scope.spans]
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_given: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    traces._provider.cache_clear()
    with patch.context() as inner:
        inner.setenv(traces.ENDPOINTS[0], f"http://127.0.0.1:{server.server_address[1]}")
        inner.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        try:
            yield collector
        finally:
            traces._provider().shutdown()
            traces._provider.cache_clear()
            server.shutdown()
            server.server_close()
            thread.join()


def _kept(span: Any) -> Kept:
    values = {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }
    return Kept(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        attributes=values,
        failed=span.status.code == 2,
    )
