"""What was used, by project, user and pool, on both databases: as JSON and as a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest
from sqlmodel import Session

from govray.platform.store.database import open_store
from govray.platform.store.states import CheckpointState, ExperimentState, RunState
from govray.platform.store.tables import CheckpointRow, PoolRow
from tests.support.databases import on_both
from tests.support.happened import experiment, run_row, submission
from tests.support.people import Service, serve

FORMULA = '=HYPERLINK("x")'
OLD, NEW = "2026-10-31T00:00:00Z", "2026-11-20T00:00:00Z"


@pytest.fixture
def used(store_url: str) -> Iterator[Service]:
    """A run of the queue, one that somebody began by hand, an old one, and two tasks."""
    engine = open_store(store_url, create=True)
    with Session(engine) as session:
        session.add(PoolRow(name="cpu", slots=4))
        session.add(PoolRow(name="gpu", slots=4, gpus=2))
        session.flush()
        ended = ExperimentState.COMPLETED
        submission(session, "e-1", ended, pool="gpu", project="vision", submitted=NEW)
        spent: dict[str, Any] = {"worker_seconds": 7200.0, "accelerator_seconds": 14400.0}
        task = {"kind": "notebook", "submitted": NEW}
        submission(session, "s-2", ended, pool="cpu", project="vision", **task, **spent)
        hour = {"started": "2026-11-21T11:00:00Z", "slots": 1}
        submission(session, "s-3", ExperimentState.RUNNING, pool="gpu", **task, **hour)
        for name, project, user, started, size in (
            ("1", "vision", "ada", NEW, 1000),
            ("2", "vision", FORMULA, NEW, 0),
            ("3", "vision", "ada", OLD, 20),
        ):
            experiment(session, f"e-{name}", project=project, user=user)
            run_row(
                session, f"r-{name}", RunState.COMPLETED, experiment=f"e-{name}",
                started=started, worker_seconds=3600.0, accelerator_seconds=3600.0,
            )  # fmt: skip
            for step, state in enumerate((CheckpointState.COMPLETED, CheckpointState.DELETED)):
                session.add(CheckpointRow(run=f"r-{name}", step=step, state=state, bytes=size))
        session.commit()
    engine.dispose()
    with serve(store_url) as service:
        yield service


def by(service: Service, query: str) -> dict[str, tuple[Any, ...]]:
    """Name → runs, accelerator-hours, bytes."""
    items = service.client("auditor").get(f"/v1/usage?{query}").json()["items"]
    return {e["name"]: (e["runs"], e["acceleratorHours"], e["bytes"]) for e in items}


@on_both
def test_scripts_runs_and_tasks_count_by_project_user_and_pool(used: Service) -> None:
    assert by(used, "by=project") == {"default": (0, 2.0, "0"), "vision": (3, 7.0, "1020")}
    assert by(used, "by=pool") == {
        "-": (2, 2.0, "20"),
        "cpu": (0, 4.0, "0"),
        "gpu": (1, 3.0, "1000"),
    }
    assert by(used, "by=user") == {"ada": (2, 8.0, "1020"), FORMULA: (1, 1.0, "0")}
    first = used.client("auditor").get("/v1/usage?by=user&limit=1").json()
    assert [each["name"] for each in first["items"]] == [FORMULA]
    assert list(by(used, f"by=user&limit=1&cursor={first['next']}")) == ["ada"]
    assert used.client("auditor").get(f"/v1/usage?cursor={first['next']}").status_code == 400
    # What is stored is stored, whenever its run started.
    assert by(used, "by=pool&since=2026-11-01T00:00:00Z")["-"] == (1, 1.0, "20")


def test_a_name_in_the_file_is_no_formula(used: Service) -> None:
    answer = used.client("auditor").get("/v1/usage.csv?by=user")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    header, *rows = csv.reader(io.StringIO(answer.text))
    assert header[0] == "user"
    assert [row[0] for row in rows] == [f"'{FORMULA}", "ada"]
    assert [dict(zip(header, row, strict=True))["acceleratorHours"] for row in rows] == [
        "1.0",
        "8.0",
    ]
    pools = used.client("auditor").get("/v1/usage.csv?by=pool").text
    assert [line.partition(",")[0] for line in pools.splitlines()] == ["pool", "", "cpu", "gpu"]
