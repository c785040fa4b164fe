"""What happened is noticed once, whoever looks and in whatever order it is indexed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, true
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, select

from govray.platform.alerts import noticing
from govray.platform.alerts.noticing import notice
from govray.platform.store import rebuild, webhooks
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.states import ExperimentState, RunState
from govray.platform.store.tables import (
    Alert,
    Delivery,
    PoolRow,
    ProjectRow,
    Reverification,
    RunRow,
    WebhookRow,
)
from govray.platform.store.webhooks import event_id
from tests.support.databases import on_both
from tests.support.happened import AT, LATER, credential, decision, experiment, run_row, submission

ADA = ChangedBy(user="ada", at=AT)
KEY = bytes(32)
DAYS = timedelta(days=30)
T = RunState


def hook(session: Session, **more: Any) -> WebhookRow:
    return webhooks.add(session, url="https://hooks.example/", key=KEY, by=ADA, **more)[0]


def everything(session: Session) -> None:
    """One event of each kind that the index has, and much that is none."""
    run_row(session, "done", T.COMPLETED, finished=LATER)
    run_row(session, "broken", T.ERROR, why="rank 1 died", project="other")
    run_row(session, "going", T.RUNNING, accelerator_seconds=9000.0)
    for number, kind in enumerate(("restart", "flag", "gate", "rollback", "log")):
        decision(session, "going", number, kind)
    decision(session, "broken", 0, "stop")
    decision(session, "going", 9, "gate", source="search")
    experiment(session, "search", kind="tune", state=ExperimentState.COMPLETED, finished=LATER)
    submission(session, "s-1", ExperimentState.ERROR)
    submission(session, "s-2", ExperimentState.QUEUED)
    submission(session, "t-1", ExperimentState.ERROR, kind="notebook")
    unsigned = {"attested": "NOT_ATTESTED", "not_attested": "step 3: a link"}
    submission(session, "s-3", ExperimentState.COMPLETED, **unsigned)
    submission(session, "s-4", ExperimentState.COMPLETED, attested="ATTESTED")
    credential(session, "acme", "old", "2026-11-25T00:00:00Z")
    credential(session, "acme", "new", "2027-11-25T00:00:00Z")
    credential(session, "beta", "last", "2026-12-01T00:00:00Z")
    for number, outcome in enumerate(("verified", "failed", "could not check", "verified")):
        session.add(
            Reverification(
                attestation="sha256:a",
                number=number,
                outcome=outcome,
                since=LATER,
                checked=LATER,
            )
        )
    session.get_one(ProjectRow, "default").settings = {"monthly_accelerator_hours": 2.5}
    session.commit()


def noticed(session: Session, at: str = LATER) -> set[tuple[str, str]]:
    while notice(session, at=at, ahead=DAYS):
        pass
    return {(row.kind, row.subject) for row in session.exec(select(Alert))}


EVERY = {
    ("run.completed", "done"),
    ("run.error", "broken"),
    ("run.flag", "going"),
    ("run.gate", "going"),
    ("run.rollback", "going"),
    ("run.log", "going"),
    ("search.completed", "search"),
    ("experiment.error", "s-1"),
    ("experiment.not_attested", "s-3"),
    ("task.error", "t-1"),
    ("project.budget", "default"),
    ("credential.expiring", "beta"),
    ("model.unverified", "sha256:a"),
    ("model.verified", "sha256:a"),
}


def test_every_kind_is_noticed_and_nothing_else(store: Engine) -> None:
    with Session(store) as session:
        everything(session)
        assert noticed(session) == EVERY
        assert {kind for kind, _ in EVERY} == set(webhooks.KINDS)
        alerts = session.exec(select(Alert)).all()
        assert len(alerts) == len(EVERY) + 1  # two outcomes that are not verified
        for row in alerts:
            assert row.id == event_id(row.kind, row.subject, row.mark)
        [unsigned] = [row for row in alerts if row.kind == "experiment.not_attested"]
        assert (unsigned.at, unsigned.data["why"]) == (LATER, "step 3: a link")
        [broken] = [row for row in alerts if row.kind == "run.error"]
        assert (broken.project, broken.at, broken.data["why"]) == ("other", LATER, "rank 1 died")


@on_both
def test_nothing_is_noticed_twice_by_a_restart_or_after_a_rebuild(
    store: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(store) as session:
        everything(session)
        hook(session)
        session.commit()
        noticed(session)
        before = {row.id for row in session.exec(select(Alert))}
        sent = len(session.exec(select(Delivery)).all())
    assert sent == len(before)

    def again(new: Engine) -> None:
        with Session(new) as session:
            run_row(session, "done", T.COMPLETED, finished=LATER)
            run_row(session, "late", T.COMPLETED, finished=LATER)
            session.commit()

    rebuild.rebuild(store, again)
    with Session(store) as session:
        noticed(session)
        after = {row.id for row in session.exec(select(Alert))}
        assert len(after) == len(before) + 1
        assert len(session.exec(select(Delivery)).all()) == sent + 1
        assert session.exec(select(WebhookRow)).all()
        # Negative control: the comparison with what was noticed is what prevents it.
        monkeypatch.setattr(noticing, "_unnoticed", lambda *_: true())
        with pytest.raises(IntegrityError):
            notice(session, at=LATER, ahead=DAYS)


@on_both
def test_a_budget_is_an_event_once_a_month(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run, and a task that is running, count from their start on; what began before does not.
    A project with hours left stands before it."""
    monkeypatch.setattr(noticing, "BATCH", 1)

    def budgets(at: str) -> list[Any]:
        noticed(session, at)
        rows = session.exec(select(Alert).where(Alert.kind == "project.budget"))
        return sorted((row.mark, row.project, row.data["acceleratorHours"]) for row in rows)

    with Session(store) as session:
        for project in ("tight", "free"):
            session.add(
                ProjectRow(name=project, workspace="default", settings={}, created=AT, user="ada")
            )
            hour = {"accelerator_seconds": 3600.0, "project": project}
            run_row(session, f"old-{project}", T.COMPLETED, started="2026-10-31T23:59:59Z", **hour)
            run_row(session, f"new-{project}", T.COMPLETED, started="2026-11-01T00:00:00Z", **hour)
        session.get_one(ProjectRow, "free").settings = {"monthly_accelerator_hours": 100.0}
        session.get_one(ProjectRow, "tight").settings = {"monthly_accelerator_hours": 2.0}
        session.add(PoolRow(name="gpu", slots=1, gpus=1))
        session.commit()
        assert budgets("2026-11-24T09:00:00Z") == [], "an hour of two"
        running = {"kind": "command", "pool": "gpu", "slots": 1, "project": "tight"}
        submission(session, "s-1", ExperimentState.RUNNING, started=AT, submitted=AT, **running)
        session.commit()
        assert budgets("2026-11-24T09:59:59Z") == []
        once = [("2026-11", "tight", 2.0)]
        assert budgets("2026-11-24T10:00:00Z") == once
        session.get_one(ProjectRow, "tight").settings = {"monthly_accelerator_hours": 2.5}
        session.commit()
        assert budgets("2026-11-30T23:59:59Z") == once, "not again in its month"
        run_row(session, "next", T.RUNNING, started="2026-12-01T00:00:00Z", project="tight")
        session.get_one(RunRow, "next").accelerator_seconds = 9000.0
        session.commit()
        assert [each[:2] for each in budgets("2026-12-01T00:00:00Z")] == [
            ("2026-11", "tight"),
            ("2026-12", "tight"),
        ]
