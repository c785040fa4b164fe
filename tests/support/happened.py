"""Rows of a store in which something happened."""

from __future__ import annotations

from typing import Any

from sqlmodel import Session

from govray.platform.store.states import ExperimentState, RunState
from govray.platform.store.tables import (
    Corpus,
    CredentialRow,
    DecisionRow,
    ExperimentRow,
    QueueEntry,
    RunRow,
)

ZERO = "sha256:" + "0" * 64
BEFORE = "2026-11-20T09:00:00Z"
AT = "2026-11-24T09:00:00Z"
LATER = "2026-11-24T10:00:00Z"


def experiment(
    session: Session, id_: str, *, project: str = "default", **more: Any
) -> ExperimentRow:
    row = ExperimentRow(
        **{
            "id": id_,
            "name": id_,
            "kind": "train",
            "state": ExperimentState.RUNNING,
            "project": project,
            "user": "ada",
            "storage": "/nowhere",
            "config": {},
            "started": BEFORE,
            **more,
        }
    )
    session.add(row)
    session.flush()
    return row


def run_row(session: Session, name: str, state: RunState, **more: Any) -> RunRow:
    """A run in an experiment of the same name, unless another is given."""
    if "experiment" not in more:
        experiment(session, name, project=more.pop("project", "default"))
    row = RunRow(
        **{
            "id": name,
            "experiment": name,
            "folder": name,
            "state": state,
            "hyperparameters": {},
            "step": 3,
            "max_steps": 5,
            "attempts": 1,
            "started": BEFORE,
            "code": ZERO,
            "policy": ZERO,
            "manifest": ZERO,
            **more,
        }
    )
    session.add(row)
    session.flush()
    return row


def decision(session: Session, run: str, number: int, kind: str, **more: Any) -> None:
    session.add(
        DecisionRow(
            **{
                "run": run,
                "source": "events",
                "number": number,
                "kind": kind,
                "at": LATER,
                "step": 2,
                "corpus": "acme",
                "reason": f"{kind} happened",
                "evidence": {},
                **more,
            }
        )
    )
    session.flush()


def submission(session: Session, name: str, state: ExperimentState, **more: Any) -> QueueEntry:
    row = QueueEntry(
        **{
            "id": name,
            "kind": "train",
            "name": "gpt",
            "project": "default",
            "user": "ada",
            "state": state,
            "pool": "default",
            "priority": 0,
            "slots": 1,
            "config": "a: 1",
            "submitted": BEFORE,
            "finished": LATER,
            "attempt": 1,
            "why": "the image is gone",
            **more,
        }
    )
    session.add(row)
    session.flush()
    return row


def credential(session: Session, corpus: str, digest: str, until: str) -> None:
    if session.get(Corpus, corpus) is None:
        session.add(Corpus(name=corpus, supplier="acme", sensitivity="public"))
    session.add(
        CredentialRow(
            digest=digest,
            corpus=corpus,
            supplier="acme",
            license="MIT",
            category="permissive",
            jurisdiction="DE",
            sensitivity="public",
            valid_from=BEFORE,
            valid_until=until,
            records=1,
            commitment="",
            envelope=b"{}",
        )
    )
    session.flush()
