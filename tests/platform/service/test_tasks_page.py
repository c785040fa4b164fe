"""The page of tasks: what it lists to whom, its form, and the way in to a task, in Chromium too."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from sqlmodel import Session, col, delete, select

from govray.platform.service.acting import acting
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import AuditEntry, QueueEntry, Repeat
from govray.platform.tasks.task_file import read_task
from tests.support.people import Service, on_page
from tests.support.shown_task import entry, serving_tasks

FORM = {"name": "look", "kind": "notebook", "project": "default", "key": "k" * 22}
S = ExperimentState


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_tasks(tmp_path_factory.mktemp("tasks")) as service:
        yield service


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in {"shown", "service"} & set(request.fixturenames):
        with Session(request.getfixturevalue(name).engine) as session:
            for table in (QueueEntry, Repeat):
                session.execute(delete(table))
            session.commit()


def page(service: Service, kind: str = "engineer", query: str = "", status: int = 200) -> str:
    answer = on_page(service, kind).get(f"/tasks{query}")
    assert answer.status_code == status, answer.text[:400]
    return answer.text


def buttons(service: Service, kind: str) -> set[tuple[str, str]]:
    """Task and verb of the buttons of the list."""
    return set(re.findall(r'action="/tasks/([^"/]+)/(\w+)"', page(service, kind)))


def rows(service: Service) -> list[QueueEntry]:
    with Session(service.engine) as session:
        return list(session.exec(select(QueueEntry)))


def add(service: Service, kind: str, state: ExperimentState, user: str = "engineer") -> str:
    task = entry(service.engine, kind=kind, user=user)
    with Session(service.engine) as session:
        row = session.get_one(QueueEntry, task)
        row.state = state
        session.add(row)
        session.commit()
    return task


def test_tasks_are_listed_with_what_each_reader_may_do(
    shown: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = add(shown, "notebook", S.RUNNING)
    command = add(shown, "command", S.RUNNING)
    waiting = add(shown, "shell", S.QUEUED)
    ended = add(shown, "tensorboard", S.COMPLETED)
    theirs = add(shown, "notebook", S.RUNNING, user="somebody")
    add(shown, "train", S.RUNNING)
    own = {(notebook, "open"), *((each, "stop") for each in (notebook, command, waiting))}
    assert buttons(shown, "engineer") == own
    assert buttons(shown, "admin") == own | {(theirs, "open"), (theirs, "stop")}
    assert buttons(shown, "auditor") == set()
    told = page(shown, "auditor")
    for each in (notebook, command, waiting, ended, theirs):
        assert f'href="/tasks/{each}"' in told
    assert ">train<" not in told
    assert f"/tasks/{ended}" in page(shown, query="?state=COMPLETED")
    assert f"/tasks/{notebook}" not in page(shown, query="?state=COMPLETED")
    assert "No task is like that" in page(shown, query="?user=nobody")
    # Negative control: nothing but this decides whose buttons there are.
    monkeypatch.setattr(acting, "may_act", lambda *_, **__: None)
    assert (theirs, "open") in buttons(shown, "engineer")


@pytest.mark.parametrize(
    ("fields", "file"),
    [
        ({}, {"kind": "notebook", "idle_minutes": 30.0}),
        ({"kind": "shell", "idle": "2.5"}, {"kind": "shell", "idle_minutes": 2.5}),
        (
            {"kind": "tensorboard", "runs": "run-1\r\nrun-2"},
            {"kind": "tensorboard", "idle_minutes": 30.0, "runs": ("run-1", "run-2")},
        ),
        (
            {"kind": "command", "argv": "python\r\n-c\r\nprint('a: b')"},
            {"kind": "command", "argv": ("python", "-c", "print('a: b')")},
        ),
    ],
)
def test_the_form_starts_each_kind_once(
    shown: Service, fields: dict[str, str], file: dict[str, object]
) -> None:
    for _ in range(2):
        answer = on_page(shown).post("/tasks", data=FORM | fields)
        assert (answer.status_code, answer.headers.get("location")) == (303, "/tasks")
    (row,) = rows(shown)
    assert (row.kind, row.user, row.pool) == (file["kind"], "engineer", "default")
    assert read_task(row.config, where="config").model_dump() == file
    # Without a key the second press is a second task: negative control.
    for _ in range(2):
        on_page(shown).post("/tasks", data=FORM | fields | {"key": ""})
    assert len(rows(shown)) == 3


def test_opening_leads_to_the_tasks_own_host_once_and_stopping_comes_back(shown: Service) -> None:
    task = add(shown, "notebook", S.RUNNING)
    answer = on_page(shown).post(f"/tasks/{task}/open")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "private, no-store")
    (url,) = set(re.findall(r'href="(https://[^"]+)"', answer.text))
    assert url.startswith(f"https://{task}.tasks.example.org/tasks/{task}/enter?ticket=")
    assert f'content="0;url={url}"' in answer.text
    with Session(shown.engine) as session:
        noted = select(AuditEntry).where(col(AuditEntry.action) == "task opened")
        assert task in {each.subject for each in session.exec(noted)}
    stopped = on_page(shown).post(f"/tasks/{task}/stop")
    assert (stopped.status_code, stopped.headers["location"]) == (303, f"/tasks/{task}")
    assert rows(shown)[0].state == S.STOPPING
    assert buttons(shown, "engineer") == set()
    again = on_page(shown).post(f"/tasks/{task}/stop")
    assert (again.status_code, "text/html" in again.headers["content-type"]) == (409, True)
