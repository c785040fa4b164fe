"""Files of a run: whole or refused, and harmless in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re

import pytest
from sqlmodel import Session

from govray.platform.service.routes import downloads
from govray.platform.store import tables
from govray.platform.store.states import ExperimentState, RunState
from tests.support.people import Service
from tests.support.shown import HOSTILE, ZERO, add_decision, add_experiment, add_run

FORMULA = '=HYPERLINK("http://evil.example","x")'
CONFIG = {"name": "é", "max_steps": 3, "data": {"epochs": 1.5, "tags": ["on", "1e3", HOSTILE]}}


@pytest.fixture(scope="module")
def kept(service: Service) -> Service:
    with Session(service.engine) as session:
        add_experiment(session, "e", "gpt", "train", ExperimentState.COMPLETED)
        session.get_one(tables.ExperimentRow, "e").config = CONFIG
        for name in ("t", HOSTILE):
            add_run(
                session,
                name,
                "e",
                ZERO,
                steps=23,
                floor=2.0,
                hyperparameters={},
                state=RunState.COMPLETED,
            )
        for name, value, archived in (
            (FORMULA, 1e-30, False),
            (HOSTILE, float("inf"), False),
            ("loss", 99.0, True),
        ):
            session.add(
                tables.MetricRow(
                    run="t",
                    group="own",
                    name=name,
                    step=1,
                    attempt=0,
                    value=value,
                    archived=archived,
                )
            )
        for number in range(3):
            add_decision(session, "t", number, "flag", HOSTILE, corpus="alpha")
        session.commit()
    return service


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("at_once", [1, 7, 10_000])
def test_the_csv_has_every_number_that_counts(
    kept: Service, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(downloads, "ROWS_AT_ONCE", at_once)
    client = kept.client("auditor")
    answer = client.get("/v1/runs/t/metrics.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="t-metrics.csv"'
    head, *found = rows(answer.text)
    assert tuple(head) == downloads.HEADER
    assert len(found) == 23 + 1 + 2
    listed = client.get("/v1/runs/t/metrics?limit=200").json()["items"]
    told = [[r["group"], r["name"], str(r["step"]), str(r["attempt"])] for r in listed]
    plain = [[r[0], r[1].removeprefix("'"), *r[2:4]] for r in found]
    assert plain == told
    values = [float(row[4]) for row in found]
    assert [v for v in values if v != float("inf")] == [
        r["value"] for r in listed if r["value"] is not None
    ]
    # By name alone: of one group, and of two, in the file and page by page.
    for name in ("loss", FORMULA, "none"):
        of_name = [row for row in told if row[1] == name]
        query: dict[str, str | int] = {"name": name, "limit": 1}
        paged: list[list[str]] = []
        while True:
            page = client.get("/v1/runs/t/metrics", params=query).json()
            paged += [
                [r["group"], r["name"], str(r["step"]), str(r["attempt"])] for r in page["items"]
            ]
            if page["next"] is None:
                break
            query["cursor"] = page["next"]
        assert paged == of_name
        text = client.get("/v1/runs/t/metrics.csv", params={"name": name}).text
        assert [[r[0], r[1].removeprefix("'"), *r[2:4]] for r in rows(text)[1:]] == of_name
    assert rows(client.get("/v1/runs/t/metrics.csv?group=validation").text)[1][:3] == [
        "validation",
        "loss",
        "19",
    ]


def test_a_name_is_no_formula_and_a_file_name_has_no_quote(
    kept: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = kept.client("engineer")
    found = {row[1] for row in rows(client.get("/v1/runs/t/metrics.csv?group=own").text)[1:]}
    assert found == {f"'{FORMULA}", HOSTILE}
    monkeypatch.setattr(downloads, "_FORMULA", ("never",))  # the control
    found = {row[1] for row in rows(client.get("/v1/runs/t/metrics.csv?group=own").text)[1:]}
    assert FORMULA in found
    [named] = downloads.attached(f'{HOSTILE}\r\nSet-Cookie: a="b"\u202e.csv').values()
    assert re.fullmatch(r'attachment; filename="[A-Za-z0-9._-]{1,120}"', named)


def test_more_than_a_file_holds_is_refused_and_not_cut(
    kept: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = kept.client("admin")
    monkeypatch.setattr(downloads, "MOST_NUMBERS", 26)
    assert client.get("/v1/runs/t/metrics.csv").status_code == 200
    monkeypatch.setattr(downloads, "MOST_NUMBERS", 25)
    answer = client.get("/v1/runs/t/metrics.csv")
    assert answer.status_code == 422
    assert "page by page" in answer.json()["do"]
    assert client.get("/v1/runs/t/metrics.csv?group=own").status_code == 200
    assert client.get("/v1/runs/none/metrics.csv").status_code == 404
