"""``python -m benchmarks.service_rows``: CPU milliseconds of listings of a large store.

A store of ten thousand runs, one of which has a million numbers, is generated below the folder of
``--data`` and kept. Requests go to the application in this process, as an admin. CPU time is the
process's, the client's reading included. Turns are interleaved, and a table has the median of each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlmodel import Session
from starlette.testclient import TestClient

from benchmarks.command import positive
from benchmarks.service_app import UNLIMITED
from benchmarks.service_data import AT, insert_rows, new_token
from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.store import tables
from govray.platform.store.database import open_store

ZERO = "sha256:" + 64 * "0"
LARGE = "run-0"
SERIES = 10


def generated(folder: Path, runs: int, numbers: int) -> str:
    """The URL of a store of so many runs, of which the first has so many numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"rows-{runs}-{numbers}.db"
    url = f"sqlite:///{file.resolve()}"
    if not file.exists():
        made = file.with_suffix(".part")
        made.unlink(missing_ok=True)
        engine = open_store(f"sqlite:///{made.resolve()}", create=True)
        with Session(engine) as session:
            insert_rows(session, tables.ExperimentRow, (_experiment(n) for n in range(runs)))
            insert_rows(session, tables.RunRow, (_trial(n) for n in range(runs)))
            insert_rows(session, tables.MetricRow, _metrics(numbers))
            session.commit()
        engine.dispose()
        made.rename(file)
    return url


def _time(n: int) -> str:
    return f"2026-{1 + n // 28 % 12:02}-{1 + n % 28:02}T{n % 24:02}:{n % 60:02}:00Z"


def _experiment(n: int) -> dict[str, Any]:
    return {
        "id": f"experiment-{n}",
        "name": f"name-{n % 100}",
        "kind": "run",
        "state": "COMPLETED",
        "project": "default",
        "user": f"user-{n % 20}",
        "storage": "/runs",
        "config": {"name": f"name-{n % 100}", "max_steps": 1000, "optimizer": {"lr": 1e-3}},
        "started": _time(n),
        "finished": AT,
    }


def _trial(n: int) -> dict[str, Any]:
    return {
        "id": f"run-{n}",
        "experiment": f"experiment-{n}",
        "state": "COMPLETED",
        "hyperparameters": {"lr": 1e-3 * (1 + n % 7), "width": 64 * (1 + n % 4)},
        "step": 1000,
        "max_steps": 1000,
        "loss": 1.0 + n % 10 / 10,
        "world_size": 4,
        "attempts": 1,
        "started": _time(n),
        "finished": AT,
        "code": ZERO,
        "policy": ZERO,
        "manifest": ZERO,
        "folder": f"/runs/run-{n}",
        "worker_seconds": 1.0,
        "accelerator_seconds": 1.0,
        "read_bytes": 0,
        "reading": {},
    }


def _metrics(numbers: int) -> Iterator[dict[str, Any]]:
    for series in range(SERIES):
        for step in range(numbers // SERIES):
            yield {
                "run": LARGE,
                "group": "training",
                "name": f"series-{series}",
                "step": step,
                "attempt": 1,
                "value": 1 / (1 + step),
                "archived": False,
                "resolution": 2 if step % 100 else 0,
                "at": AT,
            }


def reads(client: TestClient, limit: int) -> dict[str, Callable[[], int]]:
    """What is measured, by name; each answers how many rows came."""

    def pages(path: str, most: int) -> Callable[[], int]:
        def read() -> int:
            rows, cursor = 0, None
            while rows < most:
                query = {"limit": limit} | ({"cursor": cursor} if cursor else {})
                answer = client.get(path, params=query)
                assert answer.status_code == 200, answer.text
                page = answer.json()
                rows += len(page["items"])
                if (cursor := page["next"]) is None:
                    break
            return rows

        return read

    def text(path: str) -> Callable[[], int]:
        def read() -> int:
            answer = client.get(path)
            assert answer.status_code == 200, answer.text
            return answer.text.count("\n")

        return read

    return {
        "one page of runs": pages("/v1/runs", 1),
        "all runs": pages("/v1/runs", sys.maxsize),
        "all experiments": pages("/v1/experiments", sys.maxsize),
        "one page of numbers": pages(f"/v1/runs/{LARGE}/metrics", 1),
        "20,000 numbers": pages(f"/v1/runs/{LARGE}/metrics", 20_000),
        "one series as CSV": text(f"/v1/runs/{LARGE}/metrics.csv?name=series-3"),
        "the run's page": text(f"/runs/{LARGE}"),
        "the listing's page": text("/experiments"),
    }


def measured(url: str, limit: int, turns: int) -> dict[str, dict[str, float]]:
    """Name → rows, and the median of its CPU milliseconds."""
    app = create_app(Settings(store=url, rate=UNLIMITED, burst=UNLIMITED))
    token = new_token(url)
    came: dict[str, list[float]] = {}
    rows: dict[str, int] = {}
    with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as client:
        for _ in range(turns):
            for name, read in reads(client, limit).items():
                began = time.process_time()
                rows[name] = read()
                came.setdefault(name, []).append(1e3 * (time.process_time() - began))
    return {
        name: {"rows": rows[name], "cpu_ms": round(statistics.median(each), 1)}
        for name, each in came.items()
    }


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print a table and one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service_rows", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Few rows and turns: seconds.")
    parser.add_argument("--data", type=Path, default=Path(".benchmark-data"), metavar="FOLDER")
    parser.add_argument("--turns", type=positive, default=5)
    parser.add_argument("--limit", type=positive, default=1000, help="Rows of a page.")
    given = parser.parse_args(words)
    sizes = (50, 500) if given.quick else (10_000, 1_000_000)
    url = generated(given.data.resolve(), *sizes)
    report = measured(url, given.limit, 2 if given.quick else given.turns)
    for name, of in report.items():
        print(f"{name:<24} {of['rows']:>9,} rows {of['cpu_ms']:>10,.1f} ms")
    print(json.dumps({"runs": sizes[0], "numbers": sizes[1], "limit": given.limit, **report}))


if __name__ == "__main__":
    main()
