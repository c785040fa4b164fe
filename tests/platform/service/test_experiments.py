"""Experiments, runs, metrics, decisions, checkpoints and the log, on both databases."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import Session, select

from govray.platform.service.routes import live_metrics
from govray.platform.store.states import RunState
from govray.platform.store.tables import AuditEntry, MetricRow, RunRow
from tests.support.databases import on_both
from tests.support.people import Service, serve
from tests.support.runs import add_runs, metric


@pytest.fixture
def running(store_url: str) -> Iterator[Service]:
    with serve(store_url) as service:
        add_runs(service.engine)
        yield service


@pytest.fixture
def client(running: Service) -> TestClient:
    return running.client("auditor")


@on_both
def test_the_store_answers_as_it_was_filled(running: Service, client: TestClient) -> None:
    """One test for all plain reads: each database is made once."""
    # Pages: every experiment once, the latest first, whatever the page size.
    for limit in (1, 3, 8, 200):
        seen: list[tuple[str, str]] = []
        cursor = None
        for _ in range(10):
            params = {"limit": limit} | ({"cursor": cursor} if cursor else {})
            body = client.get("/v1/experiments", params=params).json()
            seen += [(each["submitted"], each["id"]) for each in body["items"]]
            cursor = body["next"]
            if cursor is None:
                break
        assert len(seen) == 9  # one waits in the queue
        assert seen == sorted(seen, reverse=True)

    # A cursor belongs to its query and its caller.
    cursor = client.get("/v1/experiments?limit=2").json()["next"]
    for other, params in (
        (client, {"cursor": cursor, "state": "COMPLETED"}),
        (running.client("admin"), {"cursor": cursor}),
        (client, {"cursor": cursor[:-4] + "AAAA"}),
        (client, {"cursor": "é"}),
    ):
        answer = other.get("/v1/experiments", params=params)
        assert answer.status_code == 400, params
        assert "cursor" in answer.json()["detail"]
    assert client.get("/v1/runs", params={"cursor": cursor}).status_code == 400
    assert client.get("/v1/experiments?limit=1001").status_code == 422

    # Filters.
    body = client.get("/v1/experiments?state=COMPLETED&project=other").json()
    assert [each["id"] for each in body["items"]] == ["e6", "e2", "e8", "e4"]
    assert client.get("/v1/experiments?state=DONE").status_code == 422
    for path, began in (("/v1/experiments", "submitted"), ("/v1/runs", "started")):
        times = [each[began] for each in client.get(path).json()["items"]]
        middle = times[len(times) // 2]
        found = [
            [each[began] for each in client.get(f"{path}?{bound}={middle}").json()["items"]]
            for bound in ("since", "before")
        ]
        assert found == [[t for t in times if t >= middle], [t for t in times if t < middle]]
        assert client.get(f"{path}?since=yesterday").status_code == 422
    assert client.get("/v1/experiments?project=%00").status_code in (200, 400)
    assert client.get("/v1/experiments/e1").json()["state"] == "RUNNING"
    assert client.get("/v1/experiments/none").status_code == 404

    # Runs; a loss that is no number is null.
    runs = client.get("/v1/runs?experiment=e1").json()["items"]
    assert [each["id"] for each in runs] == ["going", "done"]
    assert runs[0]["loss"] is None
    assert runs[0]["maxSteps"] == 10
    assert client.get("/v1/runs/none").status_code == 404

    # Metrics: all groups, what was superseded only on request.
    rows = client.get("/v1/runs/done/metrics").json()["items"]
    assert [(r["group"], r["step"], r["attempt"], r["value"]) for r in rows] == [
        ("training", 1, 0, 5.0),
        ("training", 2, 1, 4.0),
        ("validation", 2, 1, None),
    ]
    rows = client.get("/v1/runs/done/metrics?archived=true&group=training").json()["items"]
    assert [r["archived"] for r in rows] == [False, True, False]

    decisions = client.get("/v1/runs/done/decisions?kind=gate").json()["items"]
    assert [each["corpus"] for each in decisions] == ["acme-notes"]

    # A checkpoint that is being written, or failed, is nowhere.
    commits = client.get("/v1/runs/done/checkpoints").json()["items"]
    assert [each["state"] for each in commits] == ["COMPLETED", "DELETED"]
    assert commits[0]["bytes"] == str(2**40)

    used = client.get("/v1/usage?by=user").json()
    assert [(each["name"], each["runs"]) for each in used["items"]] == [
        ("ada", 2),
        ("engineer", 0),
    ]
    assert client.get("/v1/usage?since=2026-11-21T09:10:00Z").json()["items"][0]["runs"] == 1
    assert client.get("/v1/usage?since=yesterday").status_code == 422

    # The log of refusals, for those who may see it.
    assert running.client("supplier").get("/v1/runs").status_code == 403
    assert running.client("engineer").get("/v1/audit").status_code == 403
    entries = client.get("/v1/audit?user=supplier").json()["items"]
    assert [(e["action"], e["outcome"]) for e in entries] == [("GET /v1/runs", "refused")]
    with Session(running.engine) as session:
        assert len(session.exec(select(AuditEntry)).all()) == 2


def read_events(client: TestClient, headers: dict[str, str]) -> list[dict[str, str]]:
    text = client.get("/v1/runs/done/metrics/stream", headers=headers).text
    return [
        dict(line.split(": ", 1) for line in block.splitlines())
        for block in text.split("\n\n")
        if block and not block.startswith(":")
    ]


@pytest.fixture
def on_sqlite(service: Service) -> Service:
    with Session(service.engine) as session:
        filled = session.get(RunRow, "done") is not None
    if not filled:
        add_runs(service.engine)
    return service


def test_a_stream_ends_with_its_trial_and_resumes(on_sqlite: Service) -> None:
    client = on_sqlite.client("auditor")
    events = read_events(client, {})
    assert [each["event"] for each in events] == ["metrics"] * 3 + ["end"]
    last = json.loads(events[2]["data"])
    assert last == {
        "step": 2,
        "attempt": 1,
        "metrics": {"training": {"loss": 4.0}, "validation": {"loss": None}},
    }
    assert json.loads(events[-1]["data"]) == {"state": "COMPLETED"}
    resumed = read_events(client, {"Last-Event-ID": events[1]["id"]})
    assert [each.get("id") for each in resumed] == [events[2]["id"], None]
    assert client.get("/v1/runs/none/metrics/stream").status_code == 404


def test_a_live_stream_sends_what_comes_and_stops(
    on_sqlite: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = []

    def poll(engine: object, run: str, position: live_metrics.Position) -> object:
        polls.append(position)
        if len(polls) == 2:
            with Session(on_sqlite.engine) as session:
                session.add(metric("going", 2, 4.0))
                session.commit()
        if len(polls) == 3:
            with Session(on_sqlite.engine) as session:
                session.get_one(RunRow, "going").state = RunState.KILLED
                session.commit()
        return real(engine, run, position)  # type: ignore[arg-type]

    real = live_metrics._poll
    monkeypatch.setattr(live_metrics, "_poll", poll)
    monkeypatch.setattr(live_metrics, "POLL_SECONDS", 0.01)
    text = on_sqlite.client("auditor").get("/v1/runs/going/metrics/stream").text
    assert [line for line in text.splitlines() if line.startswith("id")] == [
        "id: 0.1.1",
        "id: 0.2.1",
    ]
    assert '"KILLED"' in text
    assert len(polls) == 3
    assert on_sqlite.app.state.streams.open == 0


def test_streams_are_bounded(on_sqlite: Service) -> None:
    streams = on_sqlite.app.state.streams
    streams.open = streams.most
    try:
        answer = on_sqlite.client("auditor").get("/v1/runs/done/metrics/stream")
    finally:
        streams.open = 0
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "10"


def test_one_caller_cannot_take_all_streams(on_sqlite: Service) -> None:
    streams, path = on_sqlite.app.state.streams, "/v1/runs/done/metrics/stream"
    streams.of["auditor"] = live_metrics.MOST_OF_ONE
    try:
        assert on_sqlite.client("auditor").get(path).status_code == 429
        assert on_sqlite.client("engineer").get(path).status_code == 200
    finally:
        streams.of.clear()
    assert on_sqlite.client("auditor").get(path).status_code == 200
    assert (streams.open, +streams.of) == (0, {})


numbers = st.lists(
    st.builds(
        metric,
        st.just("t"),
        st.integers(0, 4),
        st.floats(allow_nan=False, allow_infinity=False),
        group=st.sampled_from(["a", "b"]),
        attempt=st.integers(0, 2),
    ),
    unique_by=lambda m: (m.attempt, m.step, m.group),
)


@given(numbers, st.data())
def test_wherever_a_stream_is_cut_nothing_is_lost(
    rows: list[MetricRow], data: st.DataObject
) -> None:
    rows.sort(key=lambda m: (m.attempt, m.step, m.group))
    whole = live_metrics.events(rows, (0, 0, 0))
    cut = data.draw(st.integers(0, len(whole)))
    before = whole[:cut]
    position = before[-1][1] if before else (0, 0, 0)
    if before:
        assert live_metrics.read_position(before[-1][0].id) == position
    left = [m for m in rows if (m.attempt, m.step) >= position[:2]]
    after = live_metrics.events(left, position)
    assert [e.id for e, _ in [*before, *after]] == [e.id for e, _ in whole]
