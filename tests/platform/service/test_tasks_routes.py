"""Submitting tasks, and who may open which."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from httpx import Response
from sqlalchemy import true
from sqlmodel import Session, col, select

from govray.governance.submission.code_archive import archive_place
from govray.platform.service.acting import acting
from govray.platform.service.routes import tasks as routes
from govray.platform.service.visible import visible_runs
from govray.platform.store.queue_entries import waiting
from govray.platform.store.tables import AuditEntry, QueueEntry
from govray.platform.tasks.endpoint import Endpoint, register
from govray.platform.tasks.kept_files import OUTPUT
from tests.support.people import Service
from tests.support.shown_task import AT, entry, serving_tasks

NEW = {"name": "look", "config": "kind: notebook\nidle_minutes: 5\n"}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_tasks(tmp_path_factory.mktemp("tasks")) as service:
        yield service


def test_a_task_is_submitted_and_listed_to_whom_it_is(shown: Service) -> None:
    engineer = shown.client("engineer")
    made = engineer.post("/v1/tasks", json=NEW)
    assert made.status_code == 201
    task = made.json()
    assert (task["kind"], task["state"], task["user"]) == ("notebook", "QUEUED", "engineer")
    with Session(shown.engine) as session:
        assert task["id"] in {row.id for row in waiting(session)}
    shown_alone = engineer.get(f"/v1/tasks/{task['id']}").json()
    assert shown_alone == task | {"file": NEW["config"]}
    assert task in engineer.get("/v1/tasks").json()["items"]
    assert task in shown.client("admin").get("/v1/tasks").json()["items"]


def test_it_may_have_a_working_directory(shown: Service) -> None:
    digest = "sha256:" + "5" * 64
    engineer = shown.client("engineer")
    assert engineer.post("/v1/tasks", json=NEW | {"archive": digest}).status_code == 422
    place = archive_place(shown.app.state.settings.storage, digest)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"")
    made = engineer.post("/v1/tasks", json=NEW | {"archive": digest}).json()
    with Session(shown.engine) as session:
        assert session.get_one(QueueEntry, made["id"]).archive == digest


@pytest.mark.parametrize(
    ("node", "status"), [(None, 200), ("10.0.0.5", 200), ("10.0.0.6", 502), ("127.0.0.1", 502)]
)
def test_opening_says_what_the_proxy_would_say(
    tmp_path: Path, node: str | None, status: int
) -> None:
    """``node``: where the queue says that the task runs. Without one it does not run yet."""
    with serving_tasks(tmp_path, networks=()) as service:
        task = entry(service.engine)
        where = {"kind": "notebook", "token": "t" * 43, "landing": "lab", "started": AT}
        where |= {"task": task, "address": "http://10.0.0.5:4321"}
        register(tmp_path, Endpoint.model_validate(where))
        with Session(service.engine) as session:
            session.get_one(QueueEntry, task).node = node
            session.commit()
        answer = service.client("engineer").post(f"/v1/tasks/{task}:open")
        assert answer.status_code == status, answer.text
        if status == 502:
            assert f"the queue says that it runs on {node}" in answer.json()["detail"]


def test_its_owner_and_an_admin_open_it_and_nobody_else(shown: Service) -> None:
    others = entry(shown.engine, user="somebody")
    path = f"/v1/tasks/{others}"
    for kind, status in (("engineer", 403), ("auditor", 403), ("supplier", 403), ("public", 401)):
        assert shown.client(kind).post(f"{path}:open").status_code == status, kind
    assert shown.client("engineer").get(path).is_success
    own = shown.client("engineer").get("/v1/tasks", params={"user": "engineer"}).text
    assert others not in own
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


def test_what_its_state_does_not_allow_is_refused(shown: Service) -> None:
    task = shown.client("engineer").post("/v1/tasks", json=NEW).json()["id"]
    for verb, status in (
        *(("archive", 409), ("resume", 409), ("stop", 200), ("stop", 409), ("kill", 409)),
        *(("resume", 200), ("kill", 200), ("archive", 200), ("unarchive", 200)),
    ):
        answer = shown.client("engineer").post(f"/v1/tasks/{task}:{verb}")
        assert answer.status_code == status, (verb, answer.text)


def test_what_it_keeps_is_for_who_may_open_it(shown: Service) -> None:
    storage: Path = shown.app.state.settings.storage
    task = entry(shown.engine, kind="command")
    engineer, path = shown.client("engineer"), f"/v1/tasks/{task}/files"
    assert engineer.get(path).json() == {"items": []}
    assert engineer.post(f"/v1/tasks/{task}:open").status_code == 409  # it shows nothing
    folder = storage / "tasks" / task / "files"
    (folder / "deep").mkdir(parents=True)
    (folder / OUTPUT).write_text("<b>step 1</b>\nstep 2\n")
    (folder / "deep/a b.txt").write_text("kept")
    (outside := storage.parent / f"{task}.txt").write_text("another's")
    (folder / "link.txt").symlink_to(outside)
    (folder / "beyond").symlink_to(storage.parent)
    listed = engineer.get(path).json()["items"]
    assert [(each["name"], each["bytes"]) for each in listed] == [
        ("deep/a b.txt", "4"),
        (OUTPUT, str((folder / OUTPUT).stat().st_size)),
    ]
    answer = engineer.get(f"{path}/deep/a b.txt", headers={"Range": "bytes=1-"})
    assert (answer.status_code, answer.text) == (206, "ept")
    assert answer.headers["content-disposition"] == "attachment"
    beyond = engineer.get(f"{path}/deep/a b.txt", headers={"Range": "bytes=4-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */4")
    assert (folder / "link.txt").read_text() == "another's"  # the control
    for name, status in (("none", 404), ("..%2F..%2Fx", 404), ("link.txt", 409)):
        assert engineer.get(f"{path}/{name}").status_code == status, name
    assert engineer.get(f"{path}/beyond/{task}.txt").status_code == 409
    for kind, status in (("auditor", 403), ("other supplier", 403), ("admin", 200)):
        assert shown.client(kind).get(f"{path}/{OUTPUT}").status_code == status, kind
    page = shown.client("engineer", accept="text/html").get(f"/tasks/{task}").text
    assert "&lt;b&gt;step 1" in page
    assert f'href="/v1/tasks/{task}/files/deep/a%20b.txt"' in page
    assert "step 2" not in shown.client("auditor", accept="text/html").get(f"/tasks/{task}").text
    (folder / OUTPUT).unlink()
    shutil.rmtree(folder)
    folder.symlink_to(storage.parent)
    assert engineer.get(path).status_code == 409


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Members with roles in the projects vision and speech, and a task of eve in vision."""
    with serving_tasks(tmp_path_factory.mktemp("tenants")) as service:
        admin = service.client("admin")
        assert admin.post("/v1/workspaces", json={"name": "research"}).is_success
        for name in ("vision", "speech"):
            body = {"name": name, "workspace": "research"}
            assert admin.post("/v1/projects", json=body).is_success
        for user, role, place in (
            ("eve", "engineer", "vision"),
            ("ned", "engineer", "vision"),
            ("max", "viewer", "vision"),
            ("ada", "admin", "vision"),
            ("lea", "engineer", "speech"),
        ):
            body = {"user": user, "role": "member", "scopes": ["write"]}
            service.tokens[user] = admin.post("/v1/tokens", json=body).json()["token"]
            bound = {"user": user, "role": role, "scope": "project", "place": place}
            assert admin.post("/v1/role-bindings", json=bound).is_success
        settings = {"pools": ["gpu", "cpu"], "default_pool": "gpu", "max_priority": 5}
        settings |= {"default_priority": 2, "depth_policies": ["licences"]}
        settings |= {"tasks": ["notebook", "command"]}
        assert admin.put("/v1/projects/vision/settings", json=settings).is_success
        yield service


def submitted(service: Service, who: str, **more: object) -> Response:
    return service.client(who).post("/v1/tasks", json={**NEW, "project": "vision", **more})


def test_a_task_is_seen_in_its_project_and_opened_by_its_owner_and_admins(
    tenants: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = submitted(tenants, "eve").json()["id"]
    path = f"/v1/tasks/{task}"
    expected = {
        # Who sees it, and what opening it answers.
        "eve": (200, 200),
        "ada": (200, 200),
        "admin": (200, 200),
        "ned": (200, 403),
        "engineer": (200, 403),
        "max": (200, 403),
        "lea": (404, 404),
        "supplier": (403, 403),
    }

    def found() -> dict[str, tuple[int, int]]:
        return {
            who: (
                tenants.client(who).get(path).status_code,
                tenants.client(who).post(f"{path}:open").status_code,
            )
            for who in expected
        }

    assert found() == expected
    for who, (sees, _) in expected.items():
        assert (task in tenants.client(who).get("/v1/tasks").text) == (sees == 200), who
    # Negative controls: without each of the two rules it is otherwise.
    with monkeypatch.context() as patch:
        patch.setattr(acting, "may_act", lambda *_, **__: None)
        assert found()["ned"] == (200, 200)
    with monkeypatch.context() as patch:
        patch.setattr(routes, "entries", lambda _: true())
        assert found()["lea"] == (200, 403)
    assert found() == expected


def test_the_words_of_a_command_are_for_its_owner_and_engineers_and_admins_there(
    tenants: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "kind: command\nargv: [python, probe.py, --dsn, s3cr3t]\n"
    task = submitted(tenants, "eve", config=words).json()["id"]
    path = f"/tasks/{task}"

    def readers() -> set[str]:
        found = set()
        for who in ("eve", "ned", "ada", "admin", "engineer", "max", "auditor"):
            client = tenants.client(who)
            page = client.get(path, headers={"accept": "text/html"})
            answers = [client.get(f"/v1{path}"), page]
            listed = client.get("/v1/tasks").text
            assert "s3cr3t" not in listed
            assert task in listed
            told = {"s3cr3t" in each.text for each in answers}
            assert len(told) == 1, who  # the page and the route agree
            found |= {who} if told == {True} else set()
            if not told.pop():
                assert answers[0].json()["file"] is None
                assert "is for who submitted it" in page.text
        return found

    all_but = {"eve", "ned", "ada", "admin", "engineer"}
    assert readers() == all_but
    # Nobody gets at it by a fork, either.
    forked = tenants.client("admin").post("/v1/experiments", json={"forkOf": task})
    assert (forked.status_code, "s3cr3t" in forked.text) == (404, False)
    asked = tenants.client("lea").get(f"/new?fork={task}", headers={"accept": "text/html"})
    assert (asked.status_code, "s3cr3t" in asked.text) == (404, False)
    asked = tenants.client("admin").get(f"/new?fork={task}", headers={"accept": "text/html"})
    assert (asked.status_code, "s3cr3t" in asked.text) == (404, False)
    # Negative control: by the rule of experiments' files viewers read it, too.
    monkeypatch.setattr(visible_runs, "RUN_KINDS", ("train", "tune", "command"))
    assert readers() == all_but | {"max", "auditor"}


def test_who_lost_the_role_opens_its_own_task_no_more(tenants: Service) -> None:
    admin = tenants.client("admin")
    task = submitted(tenants, "ned").json()["id"]
    bound = admin.get("/v1/role-bindings", params={"limit": 100}).json()["items"]
    own = next(each["id"] for each in bound if each["subject"] == "ned")
    assert tenants.client("ned").post(f"/v1/tasks/{task}:open").is_success
    assert admin.delete(f"/v1/role-bindings/{own}").is_success
    tenants.clock[0] += timedelta(seconds=3)  # what is remembered of a token
    assert tenants.client("ned").post(f"/v1/tasks/{task}:open").status_code == 403
