"""Submitting tasks, and who may open which."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlmodel import Session, col, select

from govray.service.tasks.origin import TaskOrigins
from govray.store.database import open_store
from govray.store.submissions import waiting
from govray.store.tables import AuditEntry
from tests.support.people import Service, serve
from tests.support.shown_task import ended, entry

NEW = {"name": "look", "config": "kind: notebook\nidle_minutes: 5\n"}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("tasks")
    url = f"sqlite:///{folder / 'store.db'}"
    open_store(url, create=True).dispose()
    origins = TaskOrigins(
        url="https://{task}.tasks.example.org",
        storage=folder,
        networks=(ipaddress.ip_network("10.0.0.0/8"),),
    )
    with serve(url, tasks=origins) as service:
        yield service


def test_a_task_is_submitted_and_listed_to_whom_it_is(shown: Service) -> None:
    engineer = shown.client("engineer")
    made = engineer.post("/v1/tasks", json=NEW)
    assert made.status_code == 201
    task = made.json()
    assert (task["kind"], task["state"], task["user"]) == ("notebook", "QUEUED", "engineer")
    with Session(shown.engine) as session:
        assert task["id"] in {row.id for row in waiting(session)}
    assert engineer.get(f"/v1/tasks/{task['id']}").json() == task
    assert task in engineer.get("/v1/tasks").json()["items"]
    assert task in shown.client("admin").get("/v1/tasks").json()["items"]


@pytest.mark.parametrize("config", ["kind: notbook", "kind: notebook\nidle_minutes: -1", "", "["])
def test_what_is_no_task_is_refused(shown: Service, config: str) -> None:
    answer = shown.client("engineer").post("/v1/tasks", json={**NEW, "config": config})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("config")


def test_its_owner_and_an_admin_open_it_and_nobody_else(shown: Service) -> None:
    others = entry(shown.engine, user="somebody")
    path = f"/v1/tasks/{others}"
    for kind, status in (("engineer", 404), ("auditor", 403), ("supplier", 403), ("public", 401)):
        assert shown.client(kind).post(f"{path}:open").status_code == status, kind
    assert shown.client("engineer").get(path).status_code == 404
    assert others not in shown.client("engineer").get("/v1/tasks").text
    answer = shown.client("admin").post(f"{path}:open").json()
    start = f"https://{others}.tasks.example.org/tasks/{others}/enter?ticket="
    assert answer["url"].startswith(start)
    assert shown.client("engineer").post(f"/v1/tasks/{entry(shown.engine)}:open").is_success
    with Session(shown.engine) as session:
        found = session.exec(
            select(AuditEntry).where(
                col(AuditEntry.action) == "task opened", col(AuditEntry.subject) == others
            )
        ).one()
    assert (found.user, found.detail["owner"]) == ("admin", "somebody")
    assert answer["url"].removeprefix(start) not in repr(found)


def test_what_shows_nothing_is_not_opened(shown: Service, service: Service) -> None:
    engineer = shown.client("engineer")
    command = entry(shown.engine, kind="command")
    assert engineer.post(f"/v1/tasks/{command}:open").status_code == 409
    over = entry(shown.engine)
    ended(shown.engine, over)
    assert engineer.post(f"/v1/tasks/{over}:open").status_code == 410
    trained = entry(shown.engine, kind="train")  # another kind of entry is no task
    assert engineer.get(f"/v1/tasks/{trained}").status_code == 404
    # A service that was started without the proxy says so.
    task = entry(service.engine)
    answer = service.client("engineer").post(f"/v1/tasks/{task}:open")
    assert answer.status_code == 409
    assert "--tasks-port" in answer.json()["do"]
