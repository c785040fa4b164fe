"""Checkpoints pinned and unpinned over HTTP, by whom, and what in a run's folder leads nowhere."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest
from httpx import Response
from sqlmodel import Session, select

from govray.governance.formats import canonical_json
from govray.platform.store.states import CheckpointState, ExperimentState, RunState
from govray.platform.store.tables import AuditEntry, CheckpointRow, ExperimentRow, RunRow
from govray.train.checkpoint import commit_folder, pins
from govray.train.checkpoint.retention import Rules
from govray.train.checkpoint.storage import folder_name
from govray.train.state import garbage_collection
from tests.support.people import Service
from tests.support.shown import ZERO, add_experiment, add_run

STEPS = (10, 20, 30)
_NUMBERS = count()


@pytest.fixture
def run(service: Service, tmp_path: Path) -> Path:
    """The folder of a run of the engineer's, with three commits, and its rows."""
    name = f"t-{next(_NUMBERS)}"
    folder = tmp_path / name
    for step in STEPS:
        kept = {"keep": {"best": 0, "latest": 1}, "governance": {}, "ledger": {}}
        state = canonical_json.encode({"step": step} | kept)
        commit_folder.commit(folder / folder_name(step), {"state.json": state})
    done = RunState.COMPLETED
    with Session(service.engine) as session:
        add_experiment(session, f"e-{name}", "gpt", "train", ExperimentState.COMPLETED)
        add_run(
            session,
            name,
            f"e-{name}",
            ZERO,
            steps=1,
            floor=1.0,
            hyperparameters={},
            state=done,
        )
        session.flush()
        session.get_one(RunRow, name).folder = name
        for step in (*STEPS, 40):
            state = CheckpointState.COMPLETED
            session.add(CheckpointRow(run=name, step=step, state=state, digest=ZERO))
        session.commit()
    change(service, folder, storage=str(tmp_path), user="engineer")
    return folder


def change(service: Service, run: Path, **values: str) -> None:
    """Set fields of the run's experiment."""
    with Session(service.engine) as session:
        session.get_one(ExperimentRow, f"e-{run.name}").sqlmodel_update(values)
        session.commit()


def ask(
    service: Service, run: Path, verb: str, step: int, kind: str = "engineer", **body: str
) -> Response:
    path = f"/v1/runs/{run.name}/checkpoints/{step}:{verb}"
    return service.client(kind).post(path, json=body if verb == "pin" else None)


def test_what_is_pinned_stays_and_what_is_unpinned_goes(service: Service, run: Path) -> None:
    rules = Rules(best=0, latest=1)
    made = ask(service, run, "pin", 10, reason="table 2")
    assert (made.status_code, made.json()["reason"]) == (200, "pinned by engineer: table 2")
    assert ask(service, run, "pin", 10, reason="table 2").status_code == 200
    listed = service.client("auditor").get(f"/v1/runs/{run.name}/pins").json()["items"]
    assert listed == [{"step": 10, "reason": "pinned by engineer: table 2"}]
    # Negative control: of the two that no rule keeps, the one without a pin goes.
    assert garbage_collection.apply(run, rules) == (folder_name(20),)
    assert ask(service, run, "unpin", 10).json() == {"step": 10, "reason": None}
    assert ask(service, run, "unpin", 10).status_code == 200
    assert garbage_collection.apply(run, rules) == (folder_name(10),)
    assert service.client("auditor").get(f"/v1/runs/{run.name}/pins").json()["items"] == []
    with Session(service.engine) as session:
        mine = select(AuditEntry).where(AuditEntry.subject == run.name)
        actions = [row.action for row in session.exec(mine)]
    assert actions == ["checkpoint pinned"] * 2 + ["checkpoint unpinned"] * 2


def test_nobody_takes_away_what_another_run_starts_from(service: Service, run: Path) -> None:
    garbage_collection.pin(run, folder_name(10), "run-2 starts from it")
    for verb in ("pin", "unpin"):
        answer = ask(service, run, verb, 10, "admin")
        assert (answer.status_code, "run-2 starts from it" in answer.text) == (409, True)
    assert pins.read_pins(run) == {folder_name(10): "run-2 starts from it"}
    # Negative control: a person's own can be.
    ask(service, run, "pin", 20, "admin")
    assert ask(service, run, "unpin", 20).status_code == 200


def test_only_who_started_it_and_admins_pin(service: Service, run: Path) -> None:
    assert ask(service, run, "pin", 10, "admin").status_code == 200
    change(service, run, user="somebody")
    assert ask(service, run, "pin", 20).status_code == 403
    assert ask(service, run, "unpin", 10).status_code == 403
    assert pins.read_pins(run) == {folder_name(10): "pinned by admin"}


@pytest.mark.parametrize("name", [pins.PINS, f".{pins.PINS}.lock"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_run_leads_the_service_nowhere(
    service: Service, run: Path, tmp_path: Path, name: str, kind: str
) -> None:
    (run / name).unlink(missing_ok=True)
    other = tmp_path / "other"
    other.write_text("{}")
    if kind == "link":
        (run / name).symlink_to(other)
    else:
        os.mkfifo(run / name)
    answer = ask(service, run, "pin", 10)
    assert answer.status_code == 400, answer.text
    assert str(tmp_path) not in answer.text
    assert other.read_text() == "{}"
