"""Runs deleted over HTTP in two steps, what keeps one, and sweeps that are killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from httpx import Response
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from govray.governance.formats import canonical_json
from govray.platform.indexing.sweep import Swept, retain, sweep
from govray.platform.store import deletions
from govray.platform.store.rebuild import rebuild
from govray.platform.store.states import (
    CheckpointState,
    ExperimentState,
    RunState,
)
from govray.platform.store.tables import (
    AuditEntry,
    Checkpoint,
    Experiment,
    Metric,
    ModelVersion,
    Project,
    QueueEntry,
    Run,
)
from govray.train.checkpoint import commit_folder, holds
from govray.train.checkpoint.pins import COMPARED, TAKEN_OVER, pin, write_pins
from govray.train.checkpoint.storage import folder_name
from govray.train.run_folder import removal, run_lock
from tests.support.library import library
from tests.support.people import OWN_PAGE, Service
from tests.support.runs import submission
from tests.support.shown import ZERO, add_experiment, add_run

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
    session.get_one(Experiment, name).sqlmodel_update(
        {"storage": str(folder.parent), "user": "engineer", "project": "default"}
    )
    for step in steps:
        state = CheckpointState.COMPLETED
        session.add(Checkpoint(run=name, step=step, state=state, digest=ZERO, bytes=7))


def delete(service: Service, run: Path, kind: str = "engineer") -> Response:
    return service.client(kind).delete(f"/v1/runs/{run.name}")


def restore(service: Service, run: Path, kind: str = "engineer") -> Response:
    return service.client(kind).post(f"/v1/runs/{run.name}:restore")


def swept(service: Service, run: Path, at: str = LATER) -> Swept:
    return sweep(service.engine, run.parent, at=at)


def told(service: Service, run: Path) -> dict[str, Any]:
    answer: dict[str, Any] = service.client("auditor").get(f"/v1/deletions/{run.name}").json()
    return answer


def change(service: Service, row: type[Run] | type[Experiment], run: Path, **to: object) -> None:
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
        of_run = select(Checkpoint.state).where(Checkpoint.run == run.name)
        assert set(session.exec(of_run)) == {CheckpointState.DELETED}
        assert session.exec(select(Metric).where(Metric.run == run.name)).first() is None
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
    assert "are marked to be deleted" in ask.get("/projects/default").text
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
    change(service, Run, run, state=RunState.RUNNING)


def _queued(service: Service, run: Path) -> None:
    row: QueueEntry = submission(run.name)  # its experiment is called so
    with Session(service.engine) as session:
        session.add(row)
        session.commit()


def _searching(service: Service, run: Path) -> None:
    change(service, Experiment, run, kind="tune", state=ExperimentState.RUNNING)


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


KEEPS: dict[str, Callable[[Service, Path], None]] = {
    "held for case 7": _held,
    "pinned by ada: table 2": _pinned,
    "is RUNNING": _active,
    "is QUEUED": _queued,
    "its search": _searching,
    "commits to a URL": _elsewhere,
    "held for case 8": _held_replay,
    "expected cases": _malformed,
    "a link leads to it": _linked,
}


@pytest.mark.parametrize("said", KEEPS)
def test_what_needs_a_run_keeps_it_when_it_is_marked_and_when_it_is_due(
    service: Service, run: Path, said: str
) -> None:
    # Negative control: without it the run is marked.
    assert delete(service, run).status_code == 200
    KEEPS[said](service, run)
    kept = swept(service, run).kept
    assert said in kept[run.name]
    assert said in told(service, run)["why"]
    assert (run / folder_name(20)).is_dir()
    assert restore(service, run).status_code == 200
    answer = delete(service, run)
    assert answer.status_code in (400, 409)
    assert said in answer.text
    assert str(run.parent) not in answer.text


def test_a_run_that_is_driven_stays(service: Service, run: Path) -> None:
    delete(service, run)
    with run_lock.hold(run):
        assert "driven" in swept(service, run).kept[run.name]
        assert "driven" in delete(service, run).text or restore(service, run).status_code == 200
    assert (run / folder_name(20)).is_dir()


def test_only_who_started_it_and_admins_delete_and_restore(service: Service, run: Path) -> None:
    for kind, status in (("auditor", 403), ("supplier", 403), ("member", 403), ("public", 401)):
        assert delete(service, run, kind).status_code == status
        assert restore(service, run, kind).status_code == status
    assert delete(service, run, "admin").status_code == 200
    change(service, Experiment, run, user="somebody")
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


def test_a_page_asks_first_and_says_when_the_run_goes_and_when_it_went(
    service: Service, run: Path
) -> None:
    here, ask = f"/runs/{run.name}", service.client("engineer", **OWN_PAGE)
    assert "?ask=delete" in ask.get(here).text
    assert "?ask=delete" not in service.client("auditor").get(here).text
    assert "Delete it?" in ask.get(f"{here}?ask=delete").text
    assert ask.post(f"{here}/delete", follow_redirects=False).status_code == 303
    assert "It goes after" in ask.get(here).text
    assert "Restore it" not in service.client("auditor").get(here).text
    assert ask.post(f"{here}/restore", follow_redirects=False).status_code == 303
    assert "?ask=delete" in ask.get(here).text
    ask.post(f"{here}/delete")
    swept(service, run)
    assert "It was deleted on" in ask.get(here).text


def test_retention_marks_what_ended_long_ago_but_the_best_and_the_latest(
    service: Service, run: Path
) -> None:
    rules = {"days": 30, "best": 1, "latest": 1}
    objectives = {"b": 2.0, "c": 0.5, "d": 3.0, "held": 4.0, "young": 5.0}
    with Session(service.engine) as session:
        project = session.get_one(Project, "default")
        project.settings = {"retention": rules, "delete_after_days": 1}
        first = session.get_one(Run, run.name)
        first.objective, first.finished = 1.0, "2026-10-01T00:00:00Z"
        for day, (name, loss) in enumerate(objectives.items()):
            values = first.model_dump() | {"id": f"{run.name}-{name}", "objective": loss}
            values |= {"folder": values["id"], "started": f"2026-09-0{9 - day}T00:00:00Z"}
            if name == "young":
                values["finished"] = "2026-11-20T00:00:00Z"
            session.add(Run(**values))
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
        session.get_one(Project, "default").settings = {}
        session.commit()
    assert retain(service.engine, run.parent, at="2027-11-21T12:00:00Z") == []


class Killed(BaseException):
    """The process ends here."""


def _kill(*_args: object, **_more: object) -> None:
    raise Killed


@pytest.mark.parametrize("model", [False, True], ids=["run", "model"])
@pytest.mark.parametrize(
    ("where", "name"),
    [(removal, "remove"), (os, "rename"), (removal, "_clear"), (deletions, "finish")],
    ids=["begun", "rename", "removal", "tombstone"],
)
def test_what_a_killed_sweep_left_the_next_one_ends(
    service: Service,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    model: bool,
) -> None:
    if model:
        (run / "model").mkdir()
    delete(service, run)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, _kill)
        if (name, model) != ("rename", True):  # there nothing is renamed
            with pytest.raises(Killed):
                swept(service, run)
            assert told(service, run)["gone"] is None
            assert restore(service, run).status_code == 409
    swept(service, run)
    assert told(service, run)["gone"] == LATER
    assert run.exists() == model
    assert [each for each in os.listdir(run.parent) if each != run.name] == []
    assert not list(run.glob("checkpoint_*"))


def test_a_removal_that_is_killed_between_two_files_goes_on(
    service: Service, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete(service, run)
    unlink, calls = os.unlink, count()

    def once(*args: Any, **more: Any) -> None:
        if next(calls):
            raise Killed
        unlink(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", once)
        with pytest.raises(Killed):
            swept(service, run)
    assert not run.exists()
    assert os.listdir(run.parent) == [f".{run.name}.deleted"]
    assert swept(service, run).removed == [run.name]
    assert os.listdir(run.parent) == []


def test_a_registered_version_keeps_its_run_and_a_lineage_tells_what_was_deleted(
    tmp_path: Path,
) -> None:
    with library(tmp_path) as running:
        service, folder = running.service, tmp_path / "run-narrow"
        commit_folder.commit(folder / folder_name(10), {"state.json": b"{}"})
        shutil.copytree(running.shelf.models["narrow"], folder / "model")
        with Session(service.engine) as session:
            add_rows(session, folder, [10])
            session.commit()
        answer = delete(service, folder)
        assert (answer.status_code, "registered version, narrow 1.0.0" in answer.text) == (
            409,
            True,
        )
        lineage = f"/attestations/{running.digest('narrow')}/lineage"
        before = running.get("auditor", lineage).json()
        with Session(service.engine) as session:
            session.execute(sqlalchemy.delete(ModelVersion))
            session.commit()
        # Negative control: the version alone kept it.
        assert delete(service, folder).json()["attested"]
        assert running.get("auditor", lineage).json() == before
        assert swept(service, folder).removed == [folder.name]
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
