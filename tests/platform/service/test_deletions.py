"""Runs deleted over HTTP in two steps, what keeps them and projects, and sweeps that are killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from httpx import Response
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats import canonical_json
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.indexing import sweep as sweeping
from govray.platform.indexing.sweep import Swept, retain, sweep
from govray.platform.store import deletions
from govray.platform.store.model_index import index_model
from govray.platform.store.rebuild import rebuild
from govray.platform.store.states import (
    CheckpointState,
    ExperimentState,
    RunState,
)
from govray.platform.store.tables import (
    AuditEntry,
    CheckpointRow,
    ExperimentRow,
    MetricRow,
    ModelVersion,
    ProjectRow,
    QueueEntry,
    RunRow,
)
from govray.train.checkpoint import commit_folder, holds
from govray.train.checkpoint.pins import COMPARED, TAKEN_OVER, pin, write_pins
from govray.train.checkpoint.storage import folder_name
from govray.train.run_folder import removal, run_lock
from tests.support.fork import KILLED, die, in_fork
from tests.support.library import Library, library
from tests.support.people import OWN_PAGE, Service
from tests.support.runs import submission
from tests.support.shelf_of_models import KEY
from tests.support.shown import ZERO, add_experiment, add_run, add_version

NOW, LATER = "2026-11-21T12:00:00Z", "2026-11-28T12:00:00Z"
_NUMBERS = count()


@pytest.fixture
def run(service: Service, tmp_path: Path) -> Path:
    """The folder of a run of the engineer's that ended, with two commits, and its rows."""
    name = f"gpt-s-{next(_NUMBERS)}"
    folder = tmp_path / name
    for step in (10, 20):
        state = canonical_json.encode({"step": step})
        commit_folder.commit(folder / folder_name(step), {"state.json": state})
    (folder / "record").mkdir()
    (folder / "record" / "run.json").write_text("{}")
    with Session(service.engine) as session:
        add_rows(session, folder, [10, 20])
        session.commit()
    return folder


def add_rows(session: Session, folder: Path, steps: list[int]) -> None:
    """The rows of a run of the engineer's that ended, with these commits."""
    name, done = folder.name, RunState.COMPLETED
    add_experiment(session, name, "gpt", "train", ExperimentState.COMPLETED)
    add_run(session, name, name, ZERO, steps=2, floor=1.0, hyperparameters={}, state=done)
    session.get_one(ExperimentRow, name).sqlmodel_update(
        {"storage": str(folder.parent), "user": "engineer", "project": "default"}
    )
    for step in steps:
        state = CheckpointState.COMPLETED
        session.add(CheckpointRow(run=name, step=step, state=state, digest=ZERO, bytes=7))


def delete(service: Service, run: Path, kind: str = "engineer") -> Response:
    return service.client(kind).delete(f"/v1/runs/{run.name}")


def restore(service: Service, run: Path, kind: str = "engineer") -> Response:
    return service.client(kind).post(f"/v1/runs/{run.name}:restore")


def swept(service: Service, run: Path, at: str = LATER) -> Swept:
    attestor = service.app.state.register is not None
    return sweep(service.engine, run.parent, at=at, attestor=attestor)


def in_a_project(service: Service, run: Path) -> tuple[str, Path]:
    """A project that the run now belongs to, with another of its own experiment."""
    project, twin = f"p-{run.name}", run.with_name(f"twin-{run.name}")
    shutil.copytree(run, twin, symlinks=True)
    with Session(service.engine) as session:
        add_rows(session, twin, [10, 20])
        for each in (run, twin):
            session.get_one(ExperimentRow, each.name).project = project
        made = {"settings": {}, "created": NOW, "user": "admin"}
        session.add(ProjectRow(name=project, workspace="default", description="secret", **made))
        session.commit()
    return project, twin


def listed(service: Service, project: str, run: Path) -> list[bool]:
    """Whether lists show a project, its experiments, and a run of it: over HTTP, and on a page."""
    ask = service.client("auditor")
    projects = ask.get("/v1/projects", params={"limit": 1000}).json()["items"]
    experiments = ask.get("/v1/experiments", params={"project": project}).json()["items"]
    runs = ask.get("/v1/runs", params={"experiment": run.name}).json()["items"]
    page = ask.get("/runs", params={"project": project}).text
    return [
        project in {each["name"] for each in projects},
        run.name in {each["id"] for each in experiments},
        bool(runs),
        f'/runs/{run.name}"' in page,
    ]


def told(service: Service, run: Path) -> dict[str, Any]:
    answer: dict[str, Any] = service.client("auditor").get(f"/v1/deletions/{run.name}").json()
    return answer


def change(
    service: Service, row: type[RunRow] | type[ExperimentRow], run: Path, **to: object
) -> None:
    with Session(service.engine) as session:
        session.get_one(row, run.name).sqlmodel_update(to)
        session.commit()


def test_a_run_is_marked_and_after_its_time_gone_and_its_tombstone_has_the_digests(
    service: Service, run: Path
) -> None:
    marked = delete(service, run)
    assert marked.status_code == 200, marked.text
    assert (marked.json()["at"], marked.json()["goneAfter"]) == (NOW, LATER)
    assert delete(service, run).json() == marked.json()
    # Negative control: before its time nothing goes.
    assert swept(service, run, "2026-11-28T11:59:59Z") == Swept()
    assert (run / folder_name(10)).is_dir()
    assert swept(service, run) == Swept(removed=[run.name])
    assert os.listdir(run.parent) == []
    stone = told(service, run)
    assert (stone["gone"], stone["why"], stone["bytes"]) == (LATER, None, "14")
    assert [each["digest"] for each in stone["digests"]["checkpoints"]] == [ZERO, ZERO]
    with Session(service.engine) as session:
        of_run = select(CheckpointRow.state).where(CheckpointRow.run == run.name)
        assert set(session.exec(of_run)) == {CheckpointState.DELETED}
        assert session.exec(select(MetricRow).where(MetricRow.run == run.name)).first() is None
        mine = select(AuditEntry).where(AuditEntry.subject == run.name)
        entries = session.exec(mine.order_by(col(AuditEntry.number))).all()
    assert [each.action for each in entries] == ["run.delete", "run.deleted"]
    assert swept(service, run) == Swept()
    for answer in (delete(service, run), restore(service, run)):
        assert answer.status_code == 409


def test_a_project_says_what_its_checkpoints_take_and_what_is_marked(
    service: Service, run: Path
) -> None:
    ask = service.client("auditor")

    def taken() -> tuple[int, int]:
        said = ask.get("/v1/projects/default/space").json()
        assert said["free"] is None  # this service has no storage of its own
        return int(said["checkpoints"]), int(said["marked"])

    all_, marked = taken()
    delete(service, run)
    assert taken() == (all_, marked + 14)
    swept(service, run)
    assert taken() == (all_ - 14, marked)


def test_what_a_replay_compares_keeps_no_run_and_its_other_pins_do(
    service: Service, run: Path
) -> None:
    replay = run / "replays" / "r"
    commit_folder.commit(replay / folder_name(10), {"state.json": b"{}"})
    write_pins(replay, {folder_name(10): COMPARED, folder_name(20): "another starts from it"})
    assert "another starts from it" in delete(service, run).text
    write_pins(replay, {folder_name(10): COMPARED, folder_name(20): TAKEN_OVER})
    delete(service, run)
    assert swept(service, run).removed == [run.name]


def test_a_mark_is_taken_back(service: Service, run: Path) -> None:
    assert restore(service, run).status_code == 409
    delete(service, run)
    assert restore(service, run).status_code == 200
    assert swept(service, run) == Swept()
    assert (run / folder_name(10)).is_dir()
    assert told(service, run)["restored"] == NOW
    assert delete(service, run).json()["restored"] is None
    assert swept(service, run).removed == [run.name]


def _held(service: Service, run: Path) -> None:
    holds.hold(run, "case 7", by="legal", at=NOW)


def _pinned(service: Service, run: Path) -> None:
    pin(run, folder_name(10), who="ada", reason="table 2")


def _active(service: Service, run: Path) -> None:
    change(service, RunRow, run, state=RunState.RUNNING)


def _queued(service: Service, run: Path) -> None:
    row: QueueEntry = submission(run.name)  # its experiment is called so
    with Session(service.engine) as session:
        session.add(row)
        session.commit()


def _asked(service: Service, run: Path) -> None:
    row: QueueEntry = submission(f"task-{run.name}")
    row.kind, row.project = "notebook", f"p-{run.name}"
    with Session(service.engine) as session:
        session.add(row)
        session.commit()


def _searching(service: Service, run: Path) -> None:
    change(service, ExperimentRow, run, kind="tune", state=ExperimentState.RUNNING)


def _elsewhere(service: Service, run: Path) -> None:
    (run / "storage.json").write_text('{"commits":"s3://b/another","storage":"s3://b"}')


def _held_replay(service: Service, run: Path) -> None:
    (replay := run / "replays" / "r").mkdir(parents=True)
    holds.hold(replay, "case 8", by="legal", at=NOW)


def _malformed(service: Service, run: Path) -> None:
    (run / "holds.json").write_text("[]")


def _linked(service: Service, run: Path) -> None:
    run.rename(run.with_name("elsewhere"))
    run.symlink_to(run.with_name("elsewhere"))


def _driven(service: Service, run: Path) -> AbstractContextManager[object]:
    return run_lock.hold(run)


@contextmanager
def _undecided(service: Service, run: Path) -> Iterator[None]:
    row: QueueEntry = submission(run.name)
    row.state, row.project = ExperimentState.COMPLETED, f"p-{run.name}"
    with Session(service.engine) as session:
        session.add(row)
        session.commit()
    service.app.state.register = object()
    yield
    service.app.state.register = None


Keeps = Callable[[Service, Path], AbstractContextManager[object] | None]
KEEPS: dict[str, Keeps] = {
    "held for case 7": _held,
    "pinned by ada: table 2": _pinned,
    "is RUNNING": _active,
    "is QUEUED": _queued,
    "its search": _searching,
    "is being driven": _driven,
    "attestor has not decided": _undecided,
    "commits to a URL": _elsewhere,
    "held for case 8": _held_replay,
    "expected cases": _malformed,
    "a link leads to it": _linked,
}
"""What an answer says → what keeps a run. What attestations need is in the test of lineages."""
STOPS = {
    "is RUNNING": "govray runs stop",
    "is QUEUED": "govray experiments stop",
    "its search": "govray experiments stop",
    "is being driven": "govray runs stop",
}


@pytest.mark.parametrize("said", KEEPS)
def test_what_needs_a_run_keeps_it_and_its_project_when_asked_and_when_due(
    service: Service, run: Path, said: str
) -> None:
    (project, twin), admin = in_a_project(service, run), service.client("admin")
    paths = (f"runs/{run.name}", f"experiments/{run.name}", f"projects/{project}")
    marked = admin.delete(f"/v1/projects/{project}").json()["items"]
    assert [each["run"] for each in marked] == sorted([run.name, twin.name])
    with KEEPS[said](service, run) or nullcontext():
        done = swept(service, run)
        # Negative control: what nothing needs goes.
        assert done.removed == [twin.name]
        assert said in done.kept[run.name]
        assert said in told(service, run)["why"]
        assert (run / folder_name(20)).is_dir()
        assert restore(service, run, "admin").status_code == 200
        for path in paths:
            answer = admin.delete(f"/v1/{path}")
            assert answer.status_code in (400, 409)
            assert said in answer.text
            assert STOPS.get(said, "") in answer.text
            assert str(run.parent) not in answer.text
    assert told(service, run)["restored"] == NOW
    assert listed(service, project, run)[0]


def test_what_can_not_go_or_has_not_ended_keeps_its_project(service: Service, run: Path) -> None:
    (project, _), admin = in_a_project(service, run), service.client("admin")
    asked = f"/v1/projects/{project}"
    assert "takes what names no other" in admin.delete("/v1/projects/default").text
    _asked(service, run)
    answer = admin.delete(asked)
    assert (answer.status_code, f"govray task stop task-{run.name}" in answer.text) == (409, True)
    with Session(service.engine) as session:
        session.get_one(QueueEntry, f"task-{run.name}").state = ExperimentState.STOPPED
        session.commit()
    change(service, ExperimentRow, run, storage="s3://bucket/runs")
    for path in (asked, f"/v1/runs/{run.name}", f"/v1/experiments/{run.name}"):
        answer = admin.delete(path)
        assert (answer.status_code, "lies at a URL" in answer.text) == (409, True)
    # Negative control: without either its runs are marked.
    change(service, ExperimentRow, run, storage=str(run.parent))
    assert admin.delete(asked).status_code == 200


def test_a_project_is_deleted_once_its_runs_are_gone_and_its_name_stays(
    service: Service, run: Path
) -> None:
    (project, twin), admin = in_a_project(service, run), service.client("admin")
    asked = f"/v1/projects/{project}"
    assert service.client("engineer").delete(asked).status_code == 403
    # It takes nothing from now on, and is there as long as a run of it is.
    assert len(admin.delete(asked).json()["items"]) == 2
    assert len(admin.delete(asked).json()["items"]) == 2
    assert admin.get(asked).json()["archived"]
    assert swept(service, run) == Swept(removed=[run.name, twin.name])
    assert all(listed(service, project, run))
    assert "secret" in admin.get(asked).text
    assert admin.delete(asked).json() == {"items": []}
    assert not any(listed(service, project, run))
    assert service.client("auditor").get(f"/v1/runs/{run.name}").status_code == 200
    assert "secret" not in admin.get(asked).text
    taken = {"name": project, "workspace": "default"}
    for answer in (
        admin.delete(asked),
        admin.patch(asked, json={"archived": False}),
        admin.post("/v1/projects", json=taken),
    ):
        assert (answer.status_code, f"deleted on {NOW}" in answer.text) == (409, True)
    with Session(service.engine) as session:
        mine = select(AuditEntry.action).where(AuditEntry.subject == f"project {project}")
        actions = session.exec(mine.order_by(col(AuditEntry.number))).all()
    assert actions == ["project.delete", "project.delete", "project.deleted"]


def test_only_who_started_it_and_admins_delete_and_restore(service: Service, run: Path) -> None:
    assert delete(service, run, "admin").status_code == 200
    change(service, ExperimentRow, run, user="somebody")
    assert delete(service, run).status_code == 403
    assert restore(service, run).status_code == 403
    assert restore(service, run, "admin").status_code == 200


def test_an_experiment_is_marked_whole_or_not_at_all(service: Service, run: Path) -> None:
    second = run.with_name(f"{run.name}-2")
    second.mkdir()
    with Session(service.engine) as session:
        done = RunState.COMPLETED
        add_run(
            session, second.name, run.name, ZERO, steps=1, floor=1, hyperparameters={}, state=done
        )
        session.commit()
    holds.hold(second, "case 9", by="legal", at=NOW)
    ask = service.client("engineer")
    assert ask.delete(f"/v1/experiments/{run.name}").status_code == 409
    assert service.client("auditor").get(f"/v1/deletions/{run.name}").status_code == 404
    holds.release(second, "case 9")
    marked = ask.delete(f"/v1/experiments/{run.name}").json()["items"]
    assert [each["run"] for each in marked] == [run.name, second.name]
    listed = ask.get("/v1/deletions", params={"experiment": run.name}).json()["items"]
    assert {each["run"] for each in listed} == {run.name, second.name}
    back = ask.post(f"/v1/experiments/{run.name}:restore").json()["items"]
    assert back == [{**each, "restored": NOW} for each in marked]
    assert swept(service, run) == Swept()


def test_a_link_in_a_run_goes_and_what_it_leads_to_stays(service: Service, run: Path) -> None:
    other = run.parent.parent / f"other-{run.name}"
    other.mkdir()
    (other / "file").write_text("mine")
    (run / "link").symlink_to(other)
    (run / folder_name(30)).symlink_to(other)
    delete(service, run)
    assert swept(service, run).removed == [run.name]
    assert not run.exists()
    assert (other / "file").read_text() == "mine"


def test_a_model_and_its_evidence_stay_and_the_commits_go(service: Service, run: Path) -> None:
    (run / "model").mkdir()
    (run / "model" / "weights").write_text("w")
    assert delete(service, run).json()["attested"]
    assert swept(service, run).removed == [run.name]
    assert sorted(each for each in os.listdir(run) if each[0] != ".") == ["model", "record"]
    assert (run / "model" / "weights").read_text() == "w"


def test_what_is_deleted_is_not_resumed(service: Service, run: Path) -> None:
    row: QueueEntry = submission(run.name)
    row.state = ExperimentState.ERROR
    with Session(service.engine) as session:
        session.add(row)
        session.commit()
    ask, path = service.client("engineer"), f"/v1/experiments/{run.name}"

    def resumed() -> tuple[int, str]:
        answer = ask.post(f"{path}:resume")
        return answer.status_code, answer.text

    assert delete(service, run).status_code == 200
    status, said = resumed()
    assert (status, f"experiments restore {run.name}" in said) == (409, True)
    restore(service, run)
    assert resumed()[0] == 200  # the control: nothing else keeps it
    ask.post(f"{path}:kill")
    delete(service, run)
    assert swept(service, run).removed == [run.name]
    status, said = resumed()
    assert (status, f"train --fork {run.name}" in said) == (409, True)


def test_a_page_asks_first_and_says_when_it_goes_and_when_it_went(
    service: Service, run: Path
) -> None:
    admin, auditor = service.client("admin", **OWN_PAGE), service.client("auditor")
    pages = (f"/runs/{run.name}", f"/experiments/{run.name}")
    for here in pages:
        assert "?ask=delete" in admin.get(here).text
        assert "?ask=delete" not in auditor.get(here).text
        assert "Delete it?" not in auditor.get(f"{here}?ask=delete").text
        assert "Delete it?" in admin.get(f"{here}?ask=delete").text
        assert admin.post(f"{here}/delete", follow_redirects=False).status_code == 303
        assert "It goes after" in auditor.get(here).text
        assert "Restore it" not in auditor.get(here).text
        if here != pages[-1]:
            assert admin.post(f"{here}/restore", follow_redirects=False).status_code == 303
            assert "?ask=delete" in admin.get(here).text
    swept(service, run)
    for here in pages:
        assert "It was deleted on" in admin.get(here).text
        assert "?ask=" not in admin.get(here).text


def test_retention_marks_what_ended_long_ago_but_the_best_and_the_latest(
    service: Service, run: Path
) -> None:
    rules = {"days": 30, "best": 1, "latest": 1}
    objectives = {"b": 2.0, "c": 0.5, "d": 3.0, "held": 4.0, "young": 5.0}
    with Session(service.engine) as session:
        project = session.get_one(ProjectRow, "default")
        project.settings = {"retention": rules, "delete_after_days": 1}
        first = session.get_one(RunRow, run.name)
        first.objective, first.finished = 1.0, "2026-10-01T00:00:00Z"
        for day, (name, loss) in enumerate(objectives.items()):
            values = first.model_dump() | {"id": f"{run.name}-{name}", "objective": loss}
            values |= {"folder": values["id"], "started": f"2026-09-0{9 - day}T00:00:00Z"}
            if name == "young":
                values["finished"] = "2026-11-20T00:00:00Z"
            session.add(RunRow(**values))
            (run.parent / values["id"]).mkdir()
        session.commit()
    holds.hold(run.with_name(f"{run.name}-held"), "case 9", by="legal", at=NOW)
    # `run` is the latest and c the best: b and d are neither held nor young.
    marked = [f"{run.name}-b", f"{run.name}-d"]
    assert retain(service.engine, run.parent, at=NOW) == marked
    assert retain(service.engine, run.parent, at=NOW) == []
    back = service.client("admin").post(f"/v1/runs/{marked[0]}:restore")
    assert (back.status_code, back.json()["user"]) == (200, deletions.RETENTION)
    # What somebody restored is not marked again.
    assert retain(service.engine, run.parent, at=LATER) == []
    assert swept(service, run, "2026-11-22T12:00:00Z").removed == marked[1:]
    with Session(service.engine) as session:  # Negative control: without rules nothing is marked.
        session.get_one(ProjectRow, "default").settings = {}
        session.commit()
    assert retain(service.engine, run.parent, at="2027-11-21T12:00:00Z") == []


def with_more(service: Service, run: Path, project: str) -> tuple[Path, Path]:
    """The folders of a search of the project, whose run is due, and of a task of it."""
    search, task = run.with_name(f"search-{run.name}"), f"task-{run.name}"
    trial = Path(shutil.copytree(run, search / f"{search.name}-0"))
    (search / "search.json").write_text("{}")
    row: QueueEntry = submission(task)
    row.kind, row.project, row.state = "command", project, ExperimentState.COMPLETED
    files = run.with_name("tasks") / task / "files"
    files.mkdir(parents=True)
    (files / "output.log").write_text("mine")
    with Session(service.engine) as session:
        add_rows(session, trial, [10, 20])
        session.get_one(RunRow, trial.name).folder = f"{search.name}/{trial.name}"
        to = {"storage": str(run.parent), "project": project, "kind": "tune"}
        session.get_one(ExperimentRow, trial.name).sqlmodel_update(to)
        session.add(row)
        session.commit()
    return search, files.parent


def test_what_a_search_and_tasks_keep_goes_with_the_last_run_and_the_project(
    service: Service, run: Path
) -> None:
    (project, _), admin = in_a_project(service, run), service.client("admin")
    search, task = with_more(service, run, project)
    other = run.with_name("tasks") / "of-another"
    other.mkdir()
    unknown = search / "trial" / "record"  # the index knows nothing of it
    unknown.mkdir(parents=True)
    (unknown / "run.json").write_text("{}")
    names = [f"{search.name}", f"tasks/{task.name}"]
    assert admin.delete(f"/v1/experiments/{search.name}-0").status_code == 200
    assert swept(service, run) == Swept(removed=[f"{search.name}-0"])
    assert (search / "search.json").exists()
    shutil.rmtree(unknown.parent)
    with run_lock.hold(search):  # it goes on
        assert "is being driven" in swept(service, run).kept[search.name]
    assert swept(service, run) == Swept(left=names[:1])
    assert admin.delete(f"/v1/projects/{project}").status_code == 200
    # Negative control: a project that is there keeps what its tasks kept.
    assert swept(service, run).left == []
    assert (task / "files" / "output.log").exists()
    assert admin.delete(f"/v1/projects/{project}").json() == {"items": []}
    elsewhere = run.with_name("elsewhere")
    task.rename(elsewhere)
    task.symlink_to(elsewhere)
    done = swept(service, run)
    assert done.left == []
    assert "a link or a file" in done.kept[names[1]]
    task.unlink()
    elsewhere.rename(task)
    assert swept(service, run) == Swept(left=names[1:])
    assert sorted(os.listdir(run.parent)) == ["tasks"]
    assert os.listdir(other.parent) == [other.name]


KILLED_AT: dict[str, tuple[Any, str, int]] = {
    "marked": (deletions, "check_may_go", 0),
    "begun": (removal, "remove", 0),
    "rename": (os, "rename", 0),
    "removal": (removal, "_clear", 0),
    "between two files": (os, "unlink", 1),
    "tombstone": (deletions, "finish", 0),
    "files": (sweeping, "remove_folder", 0),
    "search": (removal, "_clear", 7),
    "tasks": (sweeping, "remove_folder", 1),
}
"""Where a sweep is killed → what it was about to call, and how often it had."""


@pytest.mark.parametrize(
    ("when", "model"),
    [(when, False) for when in KILLED_AT] + [(each, True) for each in ("begun", "removal")],
)
def test_what_a_sweep_that_was_killed_left_the_next_one_ends(
    service: Service, run: Path, when: str, model: bool
) -> None:
    if model:
        (run / "model").mkdir()
    (project, twin), admin = in_a_project(service, run), service.client("admin")
    search, task = with_more(service, run, project)
    admin.delete(f"/v1/projects/{project}")
    with Session(service.engine) as session:
        session.get_one(ProjectRow, project).deleted = NOW
        session.commit()
    where, name, calls = KILLED_AT[when]
    tombstone = when in ("files", "search", "tasks")

    def dies() -> None:
        service.engine.dispose(close=False)  # the parent's connections
        real, made = getattr(where, name), count()
        setattr(where, name, lambda *a, **m: real(*a, **m) if next(made) < calls else die())
        swept(service, run)

    assert in_fork(dies) == KILLED
    assert (told(service, run)["gone"] is None) != tombstone
    assert task.exists()
    swept(service, run)
    assert told(service, run)["gone"] == LATER
    left = {each.name for each in (run, twin)} if model else set()
    assert not search.exists() or model
    assert {*os.listdir(run.parent)} - {search.name} == left | {"tasks"}
    assert os.listdir(task.parent) == []
    assert not list(run.glob("checkpoint_*"))


def started_from(running: Library, folder: Path) -> VerifiedModel:
    """A model whose run began with the weights of another, as its attestation says."""
    weights = running.model("narrow").subjects[0].sha256

    def began(made: Attestation) -> Attestation:
        run = made.run.model_copy(update={"initial_weights": {"model.safetensors": weights}})
        return made.model_copy(update={"run": run})

    world, start = running.shelf.world, {"block.1": ["unknown"]}
    made = world.deploy(folder, run="run-child", pretrained=start, attestation=began)
    return world.verify(made)


def test_what_lineages_need_keeps_a_run_and_they_tell_what_was_deleted(tmp_path: Path) -> None:
    with library(tmp_path) as running:
        service, folder = running.service, tmp_path / "run-narrow"
        commit_folder.commit(folder / folder_name(10), {"state.json": b"{}"})
        shutil.copytree(running.shelf.models["narrow"], folder / "model")
        with Session(service.engine) as session:
            add_rows(session, folder, [10])
            replay = RunRow(**session.get_one(RunRow, folder.name).model_dump() | {"id": "replay"})
            replay.replay_of, replay.folder = folder.name, f"{folder.name}/replays/replay"
            session.add(replay)
            child = started_from(running, tmp_path / "child")
            index_model(
                session, child, trust_root=running.shelf.root, key=KEY, folder=str(child.path)
            )
            add_version(session, "child", child.digest)
            session.commit()
        project, _ = in_a_project(service, folder)
        admin, asked = service.client("admin"), f"/v1/projects/{project}"
        lineage = f"/attestations/{running.digest('narrow')}/lineage"
        before = running.get("auditor", lineage).json()
        for needs, attestation in (
            ("registered version, narrow 1.0.0", running.digest("narrow")),
            ("version began with it, child 1.2.0", child.digest),
        ):
            for path in (f"/v1/runs/{folder.name}", f"/v1/experiments/{folder.name}", asked):
                answer = admin.delete(path)
                assert (answer.status_code, needs in answer.text) == (409, True)
            with Session(service.engine) as session:
                version = sqlalchemy.delete(ModelVersion)
                session.execute(version.where(col(ModelVersion.attestation) == attestation))
                session.commit()
        assert "stays as evidence" in admin.delete("/v1/runs/replay").text
        # Negative control: these two alone kept it.
        assert admin.delete(asked).status_code == 200
        assert running.get("auditor", lineage).json() == before
        swept(service, folder)
        assert not (folder / folder_name(10)).exists()
        running.shelf.world.verify(folder / "model")
        after = running.get("auditor", lineage).json()
        assert after["run"].pop("deleted") == LATER
        assert after == before
        assert told(service, folder)["digests"]["attestations"] == [running.digest("narrow")]

        def fill(new: Engine) -> None:
            with Session(new) as session:
                running.shelf.index(session)
                session.commit()

        rebuild(service.engine, fill)
        assert running.get("auditor", lineage).json()["run"]["deleted"] == LATER
        assert told(service, folder)["gone"] == LATER
