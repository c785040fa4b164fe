"""Numbers of one process in Prometheus' text, and of a replica through its host's instruments."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlmodel import Session

from govray.platform.service.app import create_app
from govray.platform.service.http.prometheus import Forwarded, Registered
from govray.platform.service.http.settings import Settings
from govray.platform.store.database import open_store
from govray.platform.store.leases import RECONCILER
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import Lease, PoolRow
from tests.support.happened import submission
from tests.support.people import make_tokens


class Instruments:
    """Stands in for `ray.util.metrics`: keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, dict[str, str]]] = []

    def _make(self, name: str, _description: str, **_form: Any) -> Any:
        told = self.told

        class Instrument:
            def inc(self, tags: dict[str, str]) -> None:
                told.append((name, 1, tags))

            def observe(self, value: float, tags: dict[str, str]) -> None:
                told.append((name, value, tags))

            def set(self, value: float) -> None:
                told.append((name, value, {}))

        return Instrument()

    Counter = Histogram = Gauge = _make


def test_a_replica_forwards_its_numbers_and_sends_readers_to_who_has_all(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    instruments = Instruments()
    app = create_app(Settings(store=url), measures=Forwarded(instruments))
    admin = make_tokens(app.state.engine, "acme", "umbrella")["admin"]
    client = TestClient(app)
    assert client.get("/v1/health").status_code == 200
    names = [name for name, _, _ in instruments.told]
    assert names == ["govray_http_requests", "govray_http_request_seconds"]
    tags = {"method": "GET", "route": "/v1/health", "status": "200"}
    assert instruments.told[0] == ("govray_http_requests", 1, tags)
    answer = client.get("/metrics", headers={"Authorization": f"Bearer {admin}"})
    assert answer.status_code == 404
    assert "metrics agents" in answer.json()["do"]
    assert client.get("/metrics").status_code == 401
    app.state.engine.dispose()


def test_the_store_says_how_the_queue_and_its_attestor_stand(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    now = datetime(2026, 11, 27, 12, tzinfo=UTC)
    measures = Registered()
    settings = Settings(store=url, storage=tmp_path)
    app = create_app(settings, measures=measures, clock=lambda: now)
    admin = make_tokens(app.state.engine, "acme", "umbrella")["admin"]
    client = TestClient(app, headers={"Authorization": f"Bearer {admin}"})

    def numbers() -> dict[str, float]:
        lines = client.get("/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    before = numbers()
    assert not {"govray_queue_lease_seconds", "govray_runs_undecided_seconds"} & before.keys()
    assert before['govray_runs_decided{state="NOT_ATTESTED"}'] == 0
    assert "govray_index_pass_timestamp_seconds" not in before  # nothing indexes here
    with Session(app.state.engine) as session:
        session.add(Lease(name=RECONCILER, holder="gone", until="2026-11-27T11:58:00Z"))
        session.add(PoolRow(name="gpu", slots=4))
        for number, (state, attested) in enumerate(
            [("QUEUED", None), ("QUEUED", None), ("RUNNING", None), ("COMPLETED", None),
             ("COMPLETED", "ATTESTED"), ("COMPLETED", "NOT_ATTESTED"), ("KILLED", None)]
        ):  # fmt: skip
            submission(
                session, f"s{number}", ExperimentState(state), pool="gpu", attested=attested,
                submitted="2026-11-27T11:00:00Z", finished="2026-11-27T11:30:00Z",
            )  # fmt: skip
        session.commit()
    measures.indexed(3)
    (tmp_path / "prepared" / "one").mkdir(parents=True)
    (tmp_path / "prepared" / "one" / "manifest.dsse.json").touch()
    (tmp_path / "prepared" / ".two.partial").mkdir()
    found = numbers()
    assert found['govray_queue_entries{pool="gpu",state="QUEUED"}'] == 2
    assert found['govray_queue_entries{pool="gpu",state="RUNNING"}'] == 1
    assert 'govray_queue_entries{pool="gpu",state="KILLED"}' not in found
    assert found['govray_queue_slots{pool="gpu"}'] == 4
    assert found["govray_queue_lease_seconds"] == -120
    assert found['govray_runs_decided{state="NOT_ATTESTED"}'] == 1
    assert found["govray_runs_undecided_seconds"] == 1800
    assert found["govray_index_pass_timestamp_seconds"] > 0
    assert found["govray_index_left_out"] == 3
    assert found['govray_prepared_data{state="ready"}'] == 1
    assert found['govray_prepared_data{state="begun"}'] == 1
    for holds in ("store", "storage"):
        free, size = (
            found[f'govray_disk_{what}_bytes{{holds="{holds}"}}'] for what in ("free", "size")
        )
        assert 0 < free <= size
    app.state.engine.dispose()
