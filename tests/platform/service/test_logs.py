"""Logs of a run: by parts, searched, followed, and as a page in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import Session

from govray.platform.service.routes import logs
from govray.platform.store import run_logs
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState, RunState
from tests.support.happened import experiment, run_row
from tests.support.people import Service, serve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that go on, that ended, and that are out of reach."""
    found = tmp_path_factory.mktemp("logs")
    with Session(open_store(f"sqlite:///{found / 'store.db'}", create=True)) as session:
        for name, state in (("live", RunState.RUNNING), ("done", RunState.COMPLETED)):
            experiment(session, name, storage=str(found), state=ExperimentState.RUNNING)
            run_row(session, name, state, experiment=name)
        run_row(session, "gone", RunState.COMPLETED)
        session.commit()
    write(found, "live", "starting\n")
    write(found, "done", "".join(f"step {n}\n" for n in range(3000)))
    write(found, "done", "the driver\n", "driver-0.log")
    return found


def write(folder: Path, run: str, text: str, name: str = "rank-0-1.log") -> None:
    (folder / run / "logs").mkdir(parents=True, exist_ok=True)
    with (folder / run / "logs" / name).open("a") as file:
        file.write(text)


@pytest.fixture(scope="module")
def people(folder: Path) -> Iterator[Service]:
    with serve(f"sqlite:///{folder / 'store.db'}") as running:
        yield running


@pytest.fixture
def client(people: Service) -> TestClient:
    return people.client("engineer")


def texts(part: Any) -> list[str]:
    return [line["text"] for line in part["lines"]]


def test_a_log_is_read_from_its_end_or_on_from_a_byte(client: TestClient) -> None:
    path = "/v1/runs/done/logs/rank-0-1.log"
    end = client.get(path, params={"lines": 2}).json()
    assert texts(end) == ["step 2998", "step 2999"]
    assert end["next"] == end["size"]
    found: list[str] = []
    at = "0"
    for _ in range(10):
        part = client.get(path, params={"from": at, "lines": 1000}).json()
        found += texts(part)
        at = part["next"]
        if at == part["size"]:
            break
    assert found == [f"step {n}" for n in range(3000)]
    assert client.get(path, params={"lines": 100_000}).status_code == 422
    assert client.get(path, params={"from": "-1"}).status_code == 422
    assert client.get(path, params={"search": "x" * 201}).status_code == 422


def test_a_whole_log_is_a_file(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_logs, "MOST_BYTES", 1000)  # so it takes many pieces
    got = client.get("/v1/runs/done/logs/rank-0-1.log/text")
    assert got.text == "".join(f"step {n}\n" for n in range(3000))
    assert got.headers["content-type"] == "text/plain; charset=utf-8"
    assert got.headers["content-disposition"] == 'attachment; filename="done-rank-0-1.log"'
    assert client.get("/v1/runs/gone/logs/rank-0-1.log/text").status_code == 404
    assert client.get("/v1/runs/done/logs/store.db/text").status_code == 422


def test_a_log_is_followed_to_the_end(
    client: TestClient, people: Service, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.05)
    write(folder, "done", "last\n")
    got = client.get("/v1/runs/done/logs/driver-0.log/stream").text
    assert 'data: ["the driver"]' in got
    assert got.rstrip().endswith("event: end\ndata: {}")
    ids = [line.removeprefix("id: ") for line in got.splitlines() if line.startswith("id: ")]
    again = client.get(
        "/v1/runs/done/logs/driver-0.log/stream", headers={"Last-Event-ID": ids[-1]}
    ).text
    assert "the driver" not in again


def test_the_page_reads_without_a_script(client: TestClient) -> None:
    page = client.get("/runs/done/logs").text
    assert "step 2999" in page
    [whole] = re.findall(r'href="([^"]*/text)"', page)
    assert client.get(whole).text.startswith("step 0\nstep 1\n")
    assert "step 2499" not in page  # the last 500
    assert "logs.js" not in page
    page = client.get("/runs/done/logs", params={"name": "rank-0-1.log", "from": "0"}).text
    assert "step 499<" in page
    assert "Next part" in page
    page = client.get(
        "/runs/done/logs", params={"name": "rank-0-1.log", "search": "step 1234"}
    ).text
    assert page.count('class="log-line ') == 1
    assert "No log is kept" in client.get("/runs/gone/logs").text
    assert client.get("/runs/done/logs", params={"name": "store.db"}).status_code == 404
