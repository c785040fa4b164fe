"""Numbers of one process in Prometheus' text, and of a replica through its host's instruments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from govray.platform.service.app import create_app
from govray.platform.service.http.prometheus import Forwarded
from govray.platform.service.http.settings import Settings
from govray.platform.store.database import open_store
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
