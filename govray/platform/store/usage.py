"""What was used, and by whom: governed accelerator-hours and attested artifacts.

Seconds are those of the trials' attempts, replays included, as their event logs tell. An
accelerator is what Ray gave a worker as a GPU. An attested artifact is an attestation in the
index whose run is there too. A submission is an entry of the queue, whatever became of it.

The user is who submitted: a submission says so itself, and an experiment's run its record. What ran
outside of govray is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, func, true
from sqlmodel import Session, col, select

from govray.platform.store import tables

By = Literal["project", "user", "workspace"]

NOWHERE = "-"
"""The workspace of projects that nobody made."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one project, user or workspace used."""

    name: str
    submissions: int
    trials: int
    worker_hours: float
    accelerator_hours: float
    attested: int


def usage(
    session: Session,
    *,
    by: By = "project",
    since: str | None = None,
    experiments: ColumnElement[bool] | None = None,
    submissions: ColumnElement[bool] | None = None,
) -> tuple[Usage, ...]:
    """Usage by project, user or workspace, sorted by name. ``since``: only trials that started, and
    submissions made, at this instant or later, ``YYYY-MM-DDTHH:MM:SSZ``."""
    trial, e, s = tables.Trial, tables.Experiment, tables.Submission
    joined, started = col(e.id) == col(trial.experiment), col(trial.started) >= (since or "")
    counted = (started, true() if experiments is None else experiments)
    owner = _owner(by, e)
    spent = session.execute(
        select(
            owner,
            func.count(col(trial.id)),
            func.sum(trial.worker_seconds),
            func.sum(trial.accelerator_seconds),
        )
        .join_from(e, trial, joined)
        .where(*counted)
        .group_by(owner)
    ).all()
    attested = session.execute(
        select(owner, func.count(col(tables.Attestation.digest)))
        .join_from(e, trial, joined)
        .join(tables.Attestation, col(tables.Attestation.run) == col(trial.id))
        .where(*counted)
        .group_by(owner)
    ).all()
    asker = _owner(by, s)
    asked = session.execute(
        select(asker, func.count(col(s.id)))
        .where(col(s.submitted) >= (since or ""), true() if submissions is None else submissions)
        .group_by(asker)
    ).all()
    made = {row[0] or NOWHERE: row[1] for row in attested}
    entries = {row[0] or NOWHERE: row[1] for row in asked}
    used = {row[0] or NOWHERE: row for row in spent}
    return tuple(
        Usage(
            name=name,
            submissions=entries.get(name, 0),
            trials=used[name][1] if name in used else 0,
            worker_hours=(used[name][2] if name in used else 0) / 3600,
            accelerator_hours=(used[name][3] if name in used else 0) / 3600,
            attested=made.get(name, 0),
        )
        for name in sorted({*used, *entries})
    )


def _owner(by: By, table: Any) -> Any:
    """What rows of a table with a project and a user are added up by."""
    if by != "workspace":
        return col(table.project if by == "project" else table.user)
    p = tables.Project
    # No parameter stands in it: PostgreSQL would not see that it groups by what it selects.
    return select(p.workspace).where(p.name == table.project).scalar_subquery()
