"""Traces by OpenTelemetry: one from a request to the steps of the run that it became.

They are off until ``OTEL_EXPORTER_OTLP_ENDPOINT`` names a collector, and need ``govray[otel]``.
Nothing of OpenTelemetry is imported before that. Its other variables count as its specification
has them: ``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER``, ``OTEL_EXPORTER_OTLP_HEADERS``.

Others are told of a span by its ``traceparent`` (W3C Trace Context). A submission has it in the
store, and a job in the variable ``TRACEPARENT``, as OpenTelemetry's "Environment Variables as
Context Propagation Carriers" has it.

Attributes are ids, counts and templates of routes. They are never what somebody sent: no text,
query, address or token.

A collector that is away costs spans, and nothing else: they wait in a bounded buffer.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal

from govray.extras import install

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
VARIABLE = "TRACEPARENT"
FLUSH_MS = 5_000

Value = str | int | float | bool
Kind = Literal["INTERNAL", "SERVER"]

_log = logging.getLogger(__name__)
_current: ContextVar[str | None] = ContextVar("govray_traceparent", default=None)


class Span:
    """A span that goes on. ``traceparent`` names it to others; None where traces are off."""

    def __init__(self, span: Any = None, traceparent: str | None = None) -> None:
        self.traceparent = traceparent
        self._span = span

    def set(self, **attributes: Value | None) -> None:
        """Add attributes, with ``_`` for a dot and ``__`` for one ``_``. None is left out."""
        if self._span is not None:
            found = {_dotted(name): v for name, v in attributes.items() if v is not None}
            self._span.set_attributes(found)

    def name(self, name: str) -> None:
        """Give it another name."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, why: str) -> None:
        """Say that what it is of failed; ``why`` is a type or a word, never a message."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR)
            self._span.set_attribute("error.type", why)

    def end(self, at: int | None = None) -> None:
        """End it, now or at a time in nanoseconds since 1970."""
        if self._span is not None:
            self._span.end(at)


def _dotted(name: str) -> str:
    return "_".join(part.replace("_", ".") for part in name.split("__"))


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment names a collector and does not switch OpenTelemetry off."""
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    off = off or environment.get("OTEL_TRACES_EXPORTER", "") == "none"
    return not off and any(environment.get(name) for name in ENDPOINTS)


def begin(
    name: str, *, parent: str | None = None, kind: Kind = "INTERNAL", at: int | None = None
) -> Span:
    """Begin a span, which the caller ends.

    Args:
        parent: A ``traceparent``. An empty or malformed one begins a new trace, as W3C Trace
            Context has it.
        at: When it began, in nanoseconds since 1970; now by default.
    """
    provider = _provider() if wanted() else None
    if provider is None:
        return Span()
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    known = TraceContextTextMapPropagator()
    above = known.extract({"traceparent": parent}, Context()) if parent else Context()
    tracer = provider.get_tracer("govray")
    span = tracer.start_span(name, context=above, kind=trace.SpanKind[kind], start_time=at)
    carrier: dict[str, str] = {}
    known.inject(carrier, trace.set_span_in_context(span, Context()))
    return Span(span, carrier.get("traceparent"))


@contextmanager
def span(name: str, *, parent: str | None = None, kind: Kind = "INTERNAL") -> Iterator[Span]:
    """A span around a block, below the one around it unless ``parent`` says otherwise."""
    made = begin(name, parent=parent or _current.get(), kind=kind)
    token = _current.set(made.traceparent)
    try:
        yield made
    except BaseException as error:
        made.fail(type(error).__name__)
        raise
    finally:
        _current.reset(token)
        made.end()


def flush() -> None:
    """Send what waits, within `FLUSH_MS`."""
    if wanted() and (provider := _provider()) is not None:
        provider.force_flush(FLUSH_MS)


@cache
def _provider() -> Any:
    """This process's own provider, which no other library's spans reach; None without the extra."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning(
            "%s is set, and OpenTelemetry is not installed: no traces are sent. Run %s",
            ENDPOINTS[0],
            install("otel"),
        )
        return None
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "govray"}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
