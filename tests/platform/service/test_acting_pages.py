"""The queue, starting an experiment, and what is asked of a submission, by the pages' forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import Session, col, delete, select

from govray.governance.formats.document import format_time
from govray.platform.service.identity.access import REMEMBERED
from govray.platform.store import leases, tenancy
from govray.platform.store import pools as store_pools
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.states import ExperimentState, SubmissionState, TrialState
from govray.platform.store.submissions import asks, submit
from govray.platform.store.tables import Lease
from govray.platform.store.tables import Pool
from govray.platform.store.tables import Project
from govray.platform.store.tables import RoleBinding
from govray.platform.store.tables import Submission
from tests.support.people import NOW, OWN_PAGE, Service
from tests.support.shown import ZERO, add_experiment, add_trial

FILE = (Path(__file__).parents[3] / "jobs" / "train.yaml").read_text()
PAGE = {"accept": "text/html"}
S = SubmissionState


@pytest.fixture
def vision(service: Service) -> Iterator[None]:
    """A project that allows one pool."""
    by = ChangedBy(user="admin", at="2026-11-21T09:00:00Z")
    with Session(service.engine) as session:
        made = tenancy.make_project(session, "vision", workspace="default", by=by)
        made.settings = {"pools": ["default"]}
        session.add(made)
        session.commit()
    yield
    with Session(service.engine) as session:
        session.execute(delete(RoleBinding))
        session.execute(delete(Project).where(col(Project.name) == "vision"))
        session.commit()
    service.clock[0] += timedelta(seconds=REMEMBERED)


@pytest.fixture(autouse=True)
def _empty(service: Service) -> Iterator[None]:
    """An empty queue, on which nobody works."""
    yield
    service.clock[0] = NOW
    with Session(service.engine) as session:
        for table in (Submission, Lease, Pool):
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


def rows(service: Service) -> list[Submission]:
    with Session(service.engine) as session:
        return list(session.exec(select(Submission).order_by(col(Submission.submitted))))


def client(service: Service, kind: str = "engineer", **headers: str) -> TestClient:
    made = service.client(kind, **PAGE, **(OWN_PAGE | headers))
    made.follow_redirects = False
    return made


def html(service: Service, path: str, kind: str = "engineer", status: int = 200) -> str:
    answer = client(service, kind).get(path)
    assert answer.status_code == status, answer.text[:400]
    return answer.text


def hidden(page: str) -> dict[str, str]:
    """What the form of a page to confirm sends."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    found += re.findall(r'<textarea name="(\w+)" hidden[^>]*>\n(.*?)</textarea>', page, re.S)
    return {name: unescape(value) for name, value in found}


def test_the_page_says_who_works_on_the_queue(service: Service) -> None:
    assert "Nobody has worked on this queue yet" in html(service, "/queue")
    assert "Nothing waits and nothing runs" in html(service, "/queue")
    with Session(service.engine) as session:
        until = format_time(NOW + timedelta(seconds=30))
        leases.take(session, leases.RECONCILER, "one", at=format_time(NOW), until=until)
    assert "A reconciler works on the queue" in html(service, "/queue")
    service.clock[0] = NOW + timedelta(seconds=30)
    page = html(service, "/queue")
    assert "Nobody is working on the queue since" in page
    assert until in page


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
        store_pools.state(session, [Pool(name="gpu", slots=8), Pool(name="spot", slots=2)])
        session.commit()
    pools = re.findall(
        r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', html(service, "/queue", "auditor")
    )
    numbers = {name: re.findall(r">(\d+)<", cells) for name, cells in pools}
    assert numbers["default"] == ["0", "0", "3", "8"]
    assert numbers["gpu"] == ["8", "1", "3", "0", "0"]
    assert numbers["spot"] == ["2", "0", "0", "0", "0"]


def test_the_queue_says_what_an_entry_gave_back_and_to_staff_for_whom(service: Service) -> None:
    add(service, "whole", state=S.RUNNING, slots=2)
    add(service, "giving", state=S.RUNNING, slots=4, cap=3, held=4, gives_to="s-one")
    add(service, "given", state=S.RUNNING, slots=8, cap=2, held=2, gives_to="s-two")
    page = html(service, "/queue", "auditor")
    said = re.findall(r'<span class="small soft">(g.*?)</span>', page)
    assert sorted(re.sub("<.*?>", "", each) for each in said) == [
        "gave back 6 of 8 slots to s-two",
        "gives back 1 of 4 slots to s-one",
    ]
    [held] = re.findall(r'<tr><th scope="row">default</th>(.*?)</tr>', page)
    assert re.findall(r">(\d+)<", held) == ["3", "8", "0", "0"]


def test_a_long_queue_goes_on(service: Service) -> None:
    for number in range(60):
        add(service, f"n{number}", priority=number % 3, pool=f"p{number % 2}")
    page, seen = html(service, "/queue"), set[str]()
    for _ in range(3):
        seen |= set(re.findall(r">(n\d+)</a>", page))
        more = re.search(r'href="(\?cursor=[^"]*)"', page)
        if more is None:
            break
        page = html(service, "/queue" + unescape(more[1]))
    assert len(seen) == 60


def test_a_text_is_checked_shown_and_then_submitted_once(service: Service) -> None:
    engineer = client(service)
    given = {"file": FILE.replace("\n", "\r\n"), "project": "p", "pool": "gpu", "priority": "-3"}
    page = engineer.post("/new", data={**given, "tags": "b, a", "overrides": "max_steps=7"})
    assert page.status_code == 200
    assert rows(service) == []
    assert "What it takes at most" in page.text
    assert "No indexed run of this name read a policy there" in page.text
    sent = hidden(page.text)
    assert sent["file"].rstrip("\n") == FILE.rstrip("\n")
    assert len(sent["key"]) >= 16
    answers = [engineer.post("/submissions", data=sent) for _ in range(2)]
    [row] = rows(service)
    for answer in answers:
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/submissions/{row.id}"
    assert (row.project, row.pool, row.priority, row.tags) == ("p", "gpu", -3, ["a", "b"])
    assert (row.user, row.state) == ("engineer", S.QUEUED)
    assert "max_steps: 7" in row.config
    # Another check has another key: who wants two gets two.
    again = hidden(engineer.post("/new", data=given).text)
    engineer.post("/submissions", data=again)
    assert len(rows(service)) == 2


def test_without_a_key_a_second_press_submits_a_second_time(service: Service) -> None:
    engineer = client(service)
    sent = hidden(engineer.post("/new", data={"file": FILE}).text) | {"key": ""}
    for _ in range(2):
        engineer.post("/submissions", data=sent)
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
    for path in ("/new", "/submissions"):
        answer = client(service).post(path, data=typed)
        assert answer.status_code == (422 if said else 404), answer.text
        if said:
            assert 'role="alert"' in answer.text
            assert said in answer.text
            assert 'value="kept"' in answer.text
            assert "<script>" not in answer.text
    assert rows(service) == []


def test_a_fork_has_what_it_does_not_change(service: Service) -> None:
    origin = add(service, "first", pool="gpu", priority=-5, tags=["x"], user="somebody")
    page = html(service, f"/new?fork={origin}")
    assert 'value="gpu"' in page
    assert "submitted by somebody" in page
    engineer = client(service)
    sent = hidden(
        engineer.post(
            "/new",
            data={"fork": origin, "pool": "gpu", "priority": "-5", "overrides": "max_steps=9"},
        ).text
    )
    engineer.post("/submissions", data=sent)
    [_, row] = sorted(rows(service), key=lambda each: each.submitted)
    assert (row.forked_from, row.pool, row.user) == (origin, "gpu", "engineer")
    assert "max_steps: 9" in row.config
    assert f"/submissions/{origin}" in html(service, f"/submissions/{row.id}")


def test_one_can_go_back_and_change_it(service: Service) -> None:
    engineer = client(service)
    sent = hidden(engineer.post("/new", data={"file": FILE, "tags": "mine"}).text)
    page = engineer.post("/new", data=sent | {"change": "yes"})
    assert page.status_code == 200
    assert 'value="mine"' in page.text
    assert "<h1>Start an experiment</h1>" in page.text


def test_what_a_project_does_not_allow_is_said_in_the_form(service: Service, vision: None) -> None:
    for path in ("/new", "/submissions"):
        given = {"file": FILE, "project": "vision", "pool": "gpu", "tags": "kept"}
        answer = client(service).post(path, data=given)
        assert answer.status_code == 409, answer.text
        assert 'role="alert"' in answer.text
        assert 'value="kept"' in answer.text
    assert rows(service) == []


BUTTONS = r'action="/submissions/[^"]+/(\w+)"|href="\?ask=(\w+)"'


def buttons(service: Service, id_: str, kind: str = "engineer") -> list[str]:
    page = html(service, f"/submissions/{id_}", kind)
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
    there, engineer = f"/submissions/{id_}", client(service)

    def press(verb: str) -> SubmissionState:
        answer = engineer.post(f"{there}/{verb}")
        assert (answer.status_code, answer.headers["location"]) == (303, there)
        return rows(service)[0].state

    assert press("stop") == S.STOPPED
    assert "stop asked by engineer" in html(service, there)
    assert press("archive") == S.STOPPED
    assert rows(service)[0].archived
    assert id_ in html(service, "/submissions?archived=yes")
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
    assert engineer.post(f"{there}/explode").status_code == 404


def test_a_submission_leads_to_its_run_once_that_is_indexed(service: Service) -> None:
    id_ = add(service, state=S.RUNNING)
    with Session(service.engine) as session:
        row = session.get_one(Submission, id_)
        row.run, row.attempt, row.why = "run-1", 2, "the driver's node was lost"
        session.add(row)
        session.commit()
    page = html(service, f"/submissions/{id_}")
    assert "not indexed yet" in page
    assert "the driver&#39;s node was lost" in page
    with Session(service.engine) as session:
        state = TrialState.ACTIVE
        add_experiment(session, "e-1", "one", "run", ExperimentState.ACTIVE)
        add_trial(
            session, "run-1", "e-1", ZERO, steps=1, floor=1.0, hyperparameters={}, state=state
        )
        session.commit()
    assert 'href="/trials/run-1"' in html(service, f"/submissions/{id_}")


@pytest.mark.parametrize("state", S)
def test_what_can_be_asked_is_what_is_answered(service: Service, state: SubmissionState) -> None:
    meant = asks(state)
    for verb in ("stop", "kill", "resume"):
        id_ = add(service, state=state)
        answer = client(service).post(f"/submissions/{id_}/{verb}")
        assert (answer.status_code == 303) == (verb in meant), verb


@pytest.mark.parametrize("path", ["/sign-in", "/search", "/new", "/experiments/e-1/tags"])
def test_a_form_of_any_size_is_an_answer(service: Service, path: str) -> None:
    """Nine fields were an error of the service."""
    for count, malformed in ((9, False), (40, True)):
        given = {f"field-{number}": "x" for number in range(count)}
        answer = client(service).post(path, data=given, headers={"Accept": "text/html"})
        assert answer.status_code < 500
        assert (answer.status_code == 400) == (malformed and answer.status_code != 404)
    raw = client(service).post(path, content=b"text=%ff", headers={"Accept": "text/html"})
    assert raw.status_code in (400, 404)
