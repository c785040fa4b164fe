"""One trace from a request to a run's steps, what is in it, and that nothing else changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from sqlmodel import Session

from govray import traces
from govray.platform.queue.job_folder import variables, with_variables
from govray.platform.queue.placement import Slot
from govray.platform.store.database import open_store
from govray.platform.store.tables import QueueEntry
from tests.support.deployment import Deployment
from tests.support.newest_weights import newest_weights
from tests.support.people import serve
from tests.support.runs import FILE
from tests.support.solo import run_here
from tests.support.web_server import Handler, web_server


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

    class Takes(Handler):
        def do_POST(self) -> None:
            data = self.body()
            collector.raw += data
            sent = ExportTraceServiceRequest.FromString(data)
            for scope in (each for one in sent.resource_spans for each in one.scope_spans):
                collector.spans += [_kept(span) for span in scope.spans]
            self.say(b"")

    traces._provider.cache_clear()
    with web_server(Takes) as port, patch.context() as inner:
        inner.setenv(traces.ENDPOINTS[0], f"http://127.0.0.1:{port}")
        inner.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        try:
            yield collector
        finally:
            traces._provider().shutdown()
            traces._provider.cache_clear()


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


OUTSIDE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{OUTSIDE}-00f067aa0ba902b7-01"
SECRET = "a-text-that-somebody-sent"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv(traces.VARIABLE, raising=False)
    with collecting(monkeypatch) as made:
        yield made


def submitted(folder: Path, traceparent: str | None = CALLER) -> QueueEntry:
    """An entry that came over HTTP, with a text that no trace may have."""
    url = f"sqlite:///{folder / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url) as service:
        engineer = service.client("engineer")
        if traceparent:
            engineer.headers["traceparent"] = traceparent
        body = {"file": f"# {SECRET}\n{FILE}", "tags": [SECRET]}
        made = engineer.post("/v1/experiments", json=body)
        assert made.status_code == 201, made.text
        assert "trace" not in made.json()
        engineer.get("/v1/experiments", params={"user": SECRET})
        engineer.get("/v1/live")
        with Session(service.engine) as session:
            return session.get_one(QueueEntry, made.json()["id"])


def trained(here: Deployment) -> Path:
    return here.trainer().train(attest=True)


def test_one_trace_leads_from_a_request_to_the_steps(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = submitted(tmp_path)
    kept = {"env_vars": {"KEPT": "1"}}
    environment = with_variables(kept, variables(row, Slot()))["env_vars"]
    assert environment == {"KEPT": "1", traces.VARIABLE: row.trace}
    run_here(monkeypatch)
    here = Deployment(tmp_path / "here")
    monkeypatch.setenv(traces.VARIABLE, environment[traces.VARIABLE])
    on = trained(here)
    [request] = collector.named("POST /v1/experiments")
    [submission] = collector.named("submission")
    [run] = collector.named("run")
    steps = collector.named("steps")
    assert {each.trace for each in (request, submission, run, *steps)} == {OUTSIDE}
    assert request.parent == "00f067aa0ba902b7"
    assert (submission.parent, run.parent) == (request.id, submission.id)
    assert {each.parent for each in steps} == {run.id}
    assert [each.attributes["govray.step.last"] for each in steps] == list(range(12))
    assert submission.attributes["govray.experiment"] == row.id
    assert request.attributes["http.response.status_code"] == 201
    assert run.attributes["govray.outcome"] == "finished"
    # What people send is in no span. The probe has none.
    [listed] = collector.named("GET /v1/experiments")
    assert set(listed.attributes) == {
        "http.request.method",
        "http.route",
        "http.response.status_code",
    }
    assert collector.named("GET /v1/live") == []
    for each in (SECRET, "govr_", "Bearer", str(tmp_path)):
        assert each.encode() not in collector.raw
    # The same run without traces has the same weights.
    with monkeypatch.context() as patch:
        patch.delenv(traces.ENDPOINTS[0])
        off = trained(here)
    assert len(collector.named("run")) == 1
    on_digest, off_digest = (sha256(newest_weights(each)).hexdigest() for each in (on, off))
    assert on != off
    assert on_digest == off_digest


def test_a_collector_that_is_away_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(traces.ENDPOINTS[0], "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    traces._provider.cache_clear()
    try:
        assert submitted(tmp_path).trace is not None
    finally:
        traces._provider().shutdown()
        traces._provider.cache_clear()
