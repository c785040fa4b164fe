"""The list of runs: every filter and order, page by page, on both databases; and its tags."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html import unescape
from itertools import product
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert, select
from sqlmodel import Session

from govray.platform.service.pages.runs import ORDERS
from govray.platform.store import tables
from govray.platform.store.states import ExperimentState, RunState
from govray.platform.store.tables import AuditEntry
from tests.support.databases import on_both
from tests.support.people import PAGE, Service, serve
from tests.support.shown import HOSTILE, ZERO

RTL = '\u202eגרסה ‘quoted’ "&amp;"'
HOW_MANY = 37

# Every third loss is missing, many are equal, and three are not finite.
LOSSES = [None if n % 3 == 0 else float(n % 5) for n in range(HOW_MANY)]
LOSSES[4], LOSSES[7], LOSSES[8] = math.inf, math.nan, -math.inf
STATES = [RunState.COMPLETED, RunState.ERROR, RunState.RUNNING]


@pytest.fixture
def service(store_url: str) -> Iterator[Service]:
    with serve(store_url) as running:
        fill(running)
        yield running


def fill(service: Service, how_many: int = HOW_MANY) -> None:
    """Runs ``r-000`` …, two to an experiment; names of experiments are hostile here and there."""
    names = ["gpt", HOSTILE, RTL, "100%_sure", "vit"]
    experiments = [
        {
            "id": f"e-{n:03}",
            "name": names[n % 5],
            "kind": "train",
            "state": ExperimentState.COMPLETED,
            "project": f"project-{n % 2}",
            "user": f"user-{n % 3}",
            "storage": "runs",
            "config": {},
            "description": f"try {n} {HOSTILE if n == 1 else ''}",
            "notes": HOSTILE,
            "started": "2026-11-20T08:00:00Z",
        }
        for n in range((how_many + 1) // 2)
    ]
    runs = [
        {
            "id": f"r-{n:03}",
            "experiment": f"e-{n // 2:03}",
            "folder": "r",
            "state": STATES[n % 3],
            "hyperparameters": {},
            "step": n * 7 % 11,
            "max_steps": 20,
            "loss": LOSSES[n % HOW_MANY],
            "attempts": 1,
            "started": f"2026-11-{1 + n % 9:02}T08:00:00Z",
            "code": ZERO,
            "policy": ZERO if n % 2 else "sha256:" + "1" * 64,
            "manifest": ZERO,
            "worker_seconds": 0.0,
            "accelerator_seconds": 0.0,
            "read_bytes": 0,
        }
        for n in range(how_many)
    ]
    with Session(service.engine) as session:
        connection = session.connection()
        connection.execute(insert(tables.ExperimentRow), experiments)
        connection.execute(insert(tables.RunRow), runs)
        session.add(tables.ExperimentTag(experiment="e-001", tag="paper"))
        session.commit()


def listed(client: TestClient, **query: object) -> list[str]:
    """The runs of all pages, in their order."""
    found: list[str] = []
    address = "/runs?" + urlencode(query)
    for _ in range(HOW_MANY):
        answer = client.get(address)
        assert answer.status_code == 200, answer.text[-600:]
        found += re.findall(r'name="run" value="([^"]*)"', answer.text)
        following = re.search(r'href="(\?[^"]*cursor=[^"]*)">More', answer.text)
        if following is None:
            return found
        address = "/runs" + unescape(following[1])
    raise AssertionError("the pages never end")


def of_all_pages(client: TestClient, path: str, field: str, **query: object) -> list[str]:
    found, more = [], {}
    while True:
        page = client.get(path, params={**query, **more}).json()
        found += [each[field] for each in page["items"]]
        if page["next"] is None:
            return found
        more = {"cursor": page["next"]}


def expected(sort: str, down: bool) -> list[str]:
    """The order by hand: keys that are missing stand last, equal ones go by name."""
    keys: dict[str, list[object]] = {
        "started": [f"2026-11-{1 + n % 9:02}" for n in range(HOW_MANY)],
        "name": list(range(HOW_MANY)),
        "loss": [each if each is not None and math.isfinite(each) else None for each in LOSSES],
        "step": [n * 7 % 11 for n in range(HOW_MANY)],
        "state": [STATES[n % 3].value for n in range(HOW_MANY)],
    }
    numbered = list(enumerate(keys[sort]))
    there = sorted([(k, n) for n, k in numbered if k is not None], reverse=down)  # type: ignore[type-var]
    missing = sorted((n for n, k in numbered if k is None), reverse=down)
    return [f"r-{n:03}" for n in [*(n for _, n in there), *missing]]


@on_both
def test_every_order_is_whole_over_its_pages(service: Service) -> None:
    client = service.client("auditor", **PAGE)
    for sort, order in product(ORDERS, ("up", "down")):
        found = listed(client, sort=sort, order=order, limit=10)
        assert found == expected(sort, order == "down"), (sort, order)
        asked = {"sort": f"{'-' if order == 'down' else ''}{sort}", "limit": 10}
        assert of_all_pages(client, "/v1/runs", "id", **asked) == found, (sort, order)


@on_both
def test_every_filter_leaves_what_it_says(service: Service) -> None:
    client = service.client("engineer", **PAGE)

    def runs(**query: object) -> set[int]:
        return {int(each[2:]) for each in listed(client, limit=7, **query)}

    everything = set(range(HOW_MANY))
    assert runs() == everything
    assert runs(state="ERROR") == {n for n in everything if n % 3 == 1}
    assert runs(project="project-1") == {n for n in everything if n // 2 % 2}
    assert runs(user="user-2", state="RUNNING") == {
        n for n in everything if n // 2 % 3 == 2 and n % 3 == 2
    }
    assert runs(policy=ZERO) == {n for n in everything if n % 2}
    assert runs(tag="paper") == {2, 3}
    assert runs(tag="pape") == set()
    assert runs(named="R-01") == {n for n in everything if 10 <= n < 20}
    # A wildcard of SQL is a letter like others.
    assert runs(named="100%_S") == {n for n in everything if n // 2 % 5 == 3}
    assert runs(named="0%s") == set()
    assert runs(named="TRY 1 ") == {2, 3}  # of its description
    assert runs(named=RTL) == {n for n in everything if n // 2 % 5 == 2}
    assert runs(named="' OR 1=1 --") == set()


def test_what_is_asked_stays_in_the_address_and_hostile_text_is_text(service: Service) -> None:
    client = service.client("admin", **PAGE)
    page = client.get("/runs", params={"named": HOSTILE[:100], "sort": "loss", "limit": "3"}).text
    assert "<script>window" not in page
    assert "<img src=x" not in page
    sorting = [unescape(each) for each in re.findall(r'<th[^>]*><a href="(\?[^"]*)"', page)]
    assert len(sorting) == len(ORDERS)
    wanted = urlencode({"named": HOSTILE[:100]})
    assert all(wanted in each and "cursor" not in each for each in sorting)
    said = client.get("/experiments/e-001").text
    assert "try 1 " in said
    assert "<img src=x" not in said
    assert 'aria-sort="ascending"' in page
    assert "order=down" in next(each for each in sorting if "sort=loss" in each)


@on_both
def test_tags_are_replaced_as_a_whole_and_it_is_in_the_audit_log(service: Service) -> None:
    client = service.client("engineer")
    there = "/v1/experiments/e-001/tags"
    assert client.put(there, json={"tags": ["b", "a", "b"]}).json() == {"tags": ["a", "b"]}
    assert service.client("auditor").get("/v1/experiments/e-001").json()["tags"] == ["a", "b"]
    assert client.get("/v1/experiments?tag=a").json()["items"][0]["id"] == "e-001"
    assert client.get("/v1/experiments?tag=paper").json()["items"] == []
    with Session(service.engine) as session:
        entries = session.execute(
            select(AuditEntry.subject, AuditEntry.detail).where(
                AuditEntry.action == "experiment.tag"  # type: ignore[arg-type]
            )
        ).all()
        assert [(row[0], row[1]) for row in entries] == [("e-001", {"tags": "a b"})]
    assert client.put(there, json={"tags": []}).json() == {"tags": []}
