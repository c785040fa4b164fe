"""What was used, and by whom: governed accelerator-hours and attested artifacts.

Seconds are those of the trials' attempts, replays included, as their event logs tell. An
accelerator is what Ray gave a worker as a GPU. An attested artifact is an attestation in the
index whose run is there too.

What ran outside of govray is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import func
from sqlmodel import Session, col, select

from govray.store import tables

By = Literal["project", "user"]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one project or user used."""

    name: str
    trials: int
    worker_hours: float
    accelerator_hours: float
    attested: int


def usage(session: Session, *, by: By = "project", since: str | None = None) -> tuple[Usage, ...]:
    """Usage by project or user, sorted by name.

    Args:
        since: Only trials that started at this instant or later, ``YYYY-MM-DDTHH:MM:SSZ``.
    """
    owner = col(tables.Experiment.project if by == "project" else tables.Experiment.user)
    trial, started = tables.Trial, col(tables.Trial.started) >= (since or "")
    joined = col(tables.Experiment.id) == col(trial.experiment)
    spent = session.exec(
        select(
            owner,
            func.count(col(trial.id)),
            func.sum(trial.worker_seconds),
            func.sum(trial.accelerator_seconds),
        )
        .join(trial, joined)
        .where(started)
        .group_by(owner)
    ).all()
    attested = session.exec(
        select(owner, func.count(col(tables.Attestation.digest)))
        .join(trial, joined)
        .join(tables.Attestation, col(tables.Attestation.run) == col(trial.id))
        .where(started)
        .group_by(owner)
    ).all()
    made = dict(attested)
    return tuple(
        Usage(
            name=name,
            trials=trials,
            worker_hours=workers / 3600,
            accelerator_hours=accelerators / 3600,
            attested=made.get(name, 0),
        )
        for name, trials, workers, accelerators in sorted(spent)
    )
