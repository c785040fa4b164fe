"""Rows of experiments for the service's tests: two runs, one that ended and one that goes on."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine
from sqlmodel import Session

from govray.platform.store.states import CheckpointState, ExperimentState, RunState
from govray.platform.store.tables import CheckpointRow, DecisionRow, MetricRow, QueueEntry
from tests.support import happened
from tests.support.happened import ZERO


def run_row(session: Session, id_: str, state: RunState, started: str) -> None:
    happened.run_row(
        session,
        id_,
        state,
        experiment="e1",
        folder=f"runs/{id_}",
        hyperparameters={"blocks": 4},
        max_steps=10,
        loss=float("nan"),
        attempts=2,
        started=started,
    )


def metric(
    run: str, step: int, value: float, *, group: str = "training", attempt: int = 0, **more: bool
) -> MetricRow:
    return MetricRow(
        run=run, group=group, name="loss", step=step, attempt=attempt, value=value, **more
    )


FILE = (Path(__file__).parents[2] / "jobs" / "train.yaml").read_text()


def submission(id_: str = "s-one") -> QueueEntry:
    """An engineer's, which waits."""
    return QueueEntry(
        id=id_,
        kind="train",
        name="python-source-gpt",
        project="default",
        user="engineer",
        state=ExperimentState.QUEUED,
        pool="default",
        priority=0,
        slots=2,
        config=FILE,
        submitted="2026-11-21T09:00:00Z",
    )


def add_runs(engine: Engine) -> None:
    """One experiment with a finished run and an active one, seven further experiments.

    Beside them a submission.
    """
    with Session(engine) as session:
        session.add(submission())
        for number in range(1, 9):
            happened.experiment(
                session,
                f"e{number}",
                name="gpt",
                state=ExperimentState.RUNNING if number == 1 else ExperimentState.COMPLETED,
                project="default" if number % 2 else "other",
                storage="runs",
                started=f"2026-11-21T09:00:0{number % 4}Z",
            )
        run_row(session, "done", RunState.COMPLETED, "2026-11-21T09:00:00Z")
        run_row(session, "going", RunState.RUNNING, "2026-11-21T09:30:00Z")
        session.add_all(
            [
                metric("done", 1, 5.0),
                metric("done", 2, 4.5, archived=True),
                metric("done", 2, 4.0, attempt=1),
                metric("done", 2, float("inf"), group="validation", attempt=1),
                metric("going", 1, 5.0),
                DecisionRow(
                    run="done",
                    source="ledger",
                    number=0,
                    kind="gate",
                    step=2,
                    corpus="acme-notes",
                    reason="credential expired",
                    evidence={},
                ),
                *(
                    CheckpointRow(run="done", step=step, state=state, digest=ZERO, bytes=2**40)
                    for step, state in enumerate(CheckpointState)
                ),
            ]
        )
        session.commit()
