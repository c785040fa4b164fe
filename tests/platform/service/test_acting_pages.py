"""The queue, starting an experiment, and what is asked of a submission, by the pages' forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session, col, delete, select

from govray.platform.store import pools as store_pools
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.queue_entries import submit
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import Lease, PoolRow, QueueEntry
from tests.support.people import NOW, Service, on_page

FILE = (Path(__file__).parents[3] / "jobs" / "train.yaml").read_text()
S = ExperimentState


@pytest.fixture(autouse=True)
def _empty(service: Service) -> Iterator[None]:
    """An empty queue, on which nobody works."""
    yield
    service.clock[0] = NOW
    with Session(service.engine) as session:
        for table in (QueueEntry, Lease, PoolRow):
            session.execute(delete(table))
        session.commit()


def add(service: Service, name: str = "one", **more: Any) -> str:
    """The id of a new entry of the queue."""
    state = more.pop("state", None)
    gift = {name: more.pop(name, None) for name in ("cap", "held", "gives_to")}
    given: dict[str, Any] = {"kind": "train", "project": "default", "config": FILE, "slots": 2}
    by = ChangedBy(user=more.pop("user", "engineer"), at=more.pop("at", "2026-11-21T10:00:00Z"))
    with Session(service.engine) as session:
        row = submit(session, name=name, by=by, **(given | more))
        for column, value in gift.items():
            setattr(row, column, value)
        if state is not None:
            row.state = state
            row.started = by.at
        session.commit()
        return row.id


def rows(service: Service) -> list[QueueEntry]:
    with Session(service.engine) as session:
        return list(session.exec(select(QueueEntry).order_by(col(QueueEntry.submitted))))


def html(service: Service, path: str, kind: str = "engineer", status: int = 200) -> str:
    answer = on_page(service, kind).get(path)
    assert answer.status_code == status, answer.text[:400]
    return answer.text


def hidden(page: str) -> dict[str, str]:
    """What the form of a page to confirm sends."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    found += re.findall(r'<textarea name="(\w+)" hidden[^>]*>\n(.*?)</textarea>', page, re.S)
    return {name: unescape(value) for name, value in found}


def test_the_queue_shows_what_runs_and_what_waits_in_order(service: Service) -> None:
    add(service, "running", state=S.RUNNING, slots=3, pool="gpu")
    add(service, "late", at="2026-11-21T11:00:00Z", slots=4)
    add(service, "early", at="2026-11-21T09:00:00Z")
    add(service, "urgent", at="2026-11-21T11:30:00Z", priority=7)
    add(service, "completed", state=S.COMPLETED)
    page = html(service, "/queue", "auditor")
    waiting = page[page.index('id="waiting"') :]
    names = re.findall(r'<td class="number">(\d)</td><th scope="row"><a [^>]*>(\w+)<', waiting)
    assert names == [("1", "urgent"), ("2", "early"), ("3", "late")]
    assert ">completed<" not in page
    pools = re.findall(r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', page)
    numbers = {name: re.findall(r">(\d+)<", cells) for name, cells in pools}
    assert numbers == {"default": ["0", "0", "3", "8"], "gpu": ["1", "3", "0", "0"]}
    with Session(service.engine) as session:
        store_pools.state(session, [PoolRow(name="gpu", slots=8), PoolRow(name="spot", slots=2)])
        session.commit()
    pools = re.findall(
        r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', html(service, "/queue", "auditor")
    )
    numbers = {name: re.findall(r">(\d+)<", cells) for name, cells in pools}
    assert numbers["default"] == ["0", "0", "3", "8"]
    assert numbers["gpu"] == ["8", "1", "3", "0", "0"]
    assert numbers["spot"] == ["2", "0", "0", "0", "0"]


def test_a_text_is_checked_shown_and_then_submitted_once(service: Service) -> None:
    engineer = on_page(service)
    given = {"file": FILE.replace("\n", "\r\n"), "project": "p", "pool": "gpu", "priority": "-3"}
    page = engineer.post("/new", data={**given, "tags": "b, a", "overrides": "max_steps=7"})
    assert page.status_code == 200
    assert rows(service) == []
    assert "What it takes at most" in page.text
    assert "No indexed run of this name read a policy there" in page.text
    sent = hidden(page.text)
    assert sent["file"].rstrip("\n") == FILE.rstrip("\n")
    assert len(sent["key"]) >= 16
    answers = [engineer.post("/experiments", data=sent) for _ in range(2)]
    [row] = rows(service)
    for answer in answers:
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/experiments/{row.id}"
    assert (row.project, row.pool, row.priority) == ("p", "gpu", -3)
    assert (row.user, row.state) == ("engineer", S.QUEUED)
    assert "max_steps: 7" in row.config
    # Another check has another key: who wants two gets two.
    again = hidden(engineer.post("/new", data=given).text)
    engineer.post("/experiments", data=again)
    assert len(rows(service)) == 2


def test_without_a_key_a_second_press_submits_a_second_time(service: Service) -> None:
    engineer = on_page(service)
    sent = hidden(engineer.post("/new", data={"file": FILE}).text) | {"key": ""}
    for _ in range(2):
        engineer.post("/experiments", data=sent)
    assert len(rows(service)) == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"file": "nonsense: 1"}, "nonsense"),
        ({"file": "a: [1"}, "experiment"),
        ({"file": ""}, "file"),
        ({"project": "a b"}, "project"),
        ({"pool": "<script>"}, "pool"),
        ({"priority": "1001"}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"overrides": "nothing.here=1"}, "nothing"),
        ({"overrides": "x" * 9000}, "overrides"),
        ({"fork": "s-none"}, None),
    ],
)
def test_what_is_not_valid_is_said_and_what_was_typed_stays(
    service: Service, fields: dict[str, str], said: str | None
) -> None:
    typed = {"file": FILE, "tags": "kept"} | fields
    for path in ("/new", "/experiments"):
        answer = on_page(service).post(path, data=typed)
        assert answer.status_code == (422 if said else 404), answer.text
        if said:
            assert 'role="alert"' in answer.text
            assert said in answer.text
            assert 'value="kept"' in answer.text
            assert "<script>" not in answer.text
    assert rows(service) == []


BUTTONS = r'action="/experiments/[^"]+/(?!tags)(\w+)"|href="\?ask=(\w+)"'


def buttons(service: Service, id_: str, kind: str = "engineer") -> list[str]:
    page = html(service, f"/experiments/{id_}", kind)
    found = [one or other for one, other in re.findall(BUTTONS, page)]
    return [*found, *(["fork"] if f"/new?fork={id_}" in page else [])]


def test_buttons_are_there_for_who_may_press_them_when_they_mean_something(
    service: Service,
) -> None:
    waiting, ended = add(service), add(service, state=S.STOPPED)
    done = add(service, state=S.COMPLETED)
    assert buttons(service, waiting) == ["stop", "kill", "fork"]
    assert buttons(service, ended) == ["resume", "archive", "fork"]
    assert buttons(service, done) == ["archive", "fork"]
    assert buttons(service, add(service, state=S.KILLING)) == ["fork"]
    theirs = add(service, user="somebody")
    assert buttons(service, theirs) == ["fork"]
    assert buttons(service, theirs, "admin") == ["stop", "kill", "fork"]
    for id_ in (waiting, ended, done, theirs):
        assert buttons(service, id_, "auditor") == []


def test_stop_resume_archive_and_kill_which_asks_first(service: Service) -> None:
    id_ = add(service)
    there, engineer = f"/experiments/{id_}", on_page(service)

    def press(verb: str) -> ExperimentState:
        answer = engineer.post(f"{there}/{verb}")
        assert (answer.status_code, answer.headers["location"]) == (303, there)
        return rows(service)[0].state

    assert press("stop") == S.STOPPED
    assert "stop asked by engineer" in html(service, there)
    assert press("archive") == S.STOPPED
    assert rows(service)[0].archived
    assert id_ in html(service, "/experiments?archived=yes")
    assert press("unarchive") == S.STOPPED
    assert press("resume") == S.QUEUED
    page = html(service, f"{there}?ask=kill")
    assert "Steps since its last checkpoint are lost" in page
    assert rows(service)[0].state == S.QUEUED
    assert press("kill") == S.KILLED
    assert "Kill it?" not in html(service, f"{there}?ask=kill")
    answer = engineer.post(f"{there}/stop")
    assert answer.status_code == 409
    assert answer.headers["content-type"].startswith("text/html")
    assert engineer.post(f"{there}/explode").status_code == 422


@pytest.mark.parametrize("path", ["/sign-in", "/search", "/new", "/experiments/e-1/tags"])
def test_a_form_of_any_size_is_an_answer(service: Service, path: str) -> None:
    """Nine fields were an error of the service."""
    for count, malformed in ((9, False), (40, True)):
        given = {f"field-{number}": "x" for number in range(count)}
        answer = on_page(service).post(path, data=given, headers={"Accept": "text/html"})
        assert answer.status_code < 500
        assert (answer.status_code == 400) == (malformed and answer.status_code != 404)
    raw = on_page(service).post(path, content=b"text=%ff", headers={"Accept": "text/html"})
    assert raw.status_code in (400, 404)
