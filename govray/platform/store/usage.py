"""What was used, and by whom: accelerator-hours, bytes and attested artifacts.

Seconds are those of runs' attempts, replays included, as their event logs tell. An
accelerator is what Ray gave a worker as a GPU. A task (a notebook, a shell, a script) is a program
that says nothing of itself. Its seconds are those of its attempts as the queue saw them, times its
slots, and its accelerators are those of its pool's slots. An attested artifact is an attestation in
the index whose run is there too. What was submitted is counted whatever became of it.

Bytes are those of checkpoints that are on storage now, whenever their run started.

The user is who submitted: the queue says so, and of an experiment's run its record. The pool is the
queue's. What ran by hand or by a script had none. What ran outside of govray is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, func, true
from sqlmodel import Session, col, select

from govray.governance.formats.document import parse_time
from govray.platform.store import tables
from govray.platform.store.queue_entries import HELD
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.states import CheckpointState

By = Literal["project", "user", "pool", "workspace"]

NOWHERE = "-"
"""The workspace of projects that nobody made, and the pool of what the queue did not start."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one project, user, pool or workspace used."""

    name: str
    submitted: int
    runs: int
    worker_hours: float
    accelerator_hours: float
    bytes: int
    attested: int


_COUNTS = ("submitted", "runs", "worker_hours", "accelerator_hours", "bytes", "attested")


def usage(
    session: Session,
    *,
    at: str,
    by: By = "project",
    since: str | None = None,
    experiments: ColumnElement[bool] | None = None,
    entries: ColumnElement[bool] | None = None,
) -> tuple[Usage, ...]:
    """Usage, sorted by name. ``since``: only runs that started, and entries made, at this
    instant or later, ``YYYY-MM-DDTHH:MM:SSZ``. ``at``: now."""
    run, e, s, c = tables.RunRow, tables.ExperimentRow, tables.QueueEntry, tables.CheckpointRow
    started = col(run.started) >= (since or "")
    owner = _owner(by, e)

    def of_runs(*numbers: Any) -> Any:
        found = select(owner, *numbers).join_from(e, run, col(e.id) == col(run.experiment))
        if by == "pool":
            found = found.outerjoin(s, col(s.id) == col(e.id))
        return found.where(true() if experiments is None else experiments).group_by(owner)

    trained = session.execute(
        of_runs(
            func.count(col(run.id)),
            func.sum(run.worker_seconds),
            func.sum(run.accelerator_seconds),
        ).where(started)
    ).all()
    attested = session.execute(
        of_runs(func.count(col(tables.AttestationRow.digest)))
        .join(tables.AttestationRow, col(tables.AttestationRow.run) == col(run.id))
        .where(started)
    ).all()
    kept = session.execute(
        of_runs(func.sum(col(c.bytes)))
        .join(c, col(c.run) == col(run.id))
        .where(col(c.state) == CheckpointState.COMPLETED)
    ).all()
    asker = _owner(by, s)
    asked = (col(s.submitted) >= (since or ""), true() if entries is None else entries)
    tasks = session.execute(
        select(
            asker,
            func.count(col(s.id)),
            func.sum(s.worker_seconds),
            func.sum(s.accelerator_seconds),
        )
        .where(*asked)
        .group_by(asker)
    ).all()
    pool = tables.PoolRow
    running = session.execute(
        select(asker, s.started, s.slots, pool.gpus)
        .outerjoin_from(s, pool, col(pool.name) == col(s.pool))
        .where(*asked, col(s.state).in_(HELD), col(s.kind).not_in(RUN_KINDS))
    ).all()
    found: dict[str, dict[str, Any]] = {}
    for owned, names in (
        (trained, ("runs", "worker_hours", "accelerator_hours")),
        (attested, ("attested",)),
        (kept, ("bytes",)),
        (tasks, ("submitted", "worker_hours", "accelerator_hours")),
        (
            [
                (name, *_since_start(started_at, slots, gpus, at))
                for name, started_at, slots, gpus in running
            ],
            ("worker_hours", "accelerator_hours"),
        ),
    ):
        for owner_name, *values in owned:
            used = found.setdefault(owner_name or NOWHERE, dict.fromkeys(_COUNTS, 0))
            for name, value in zip(names, values, strict=True):
                used[name] += value / 3600 if name.endswith("_hours") else int(value)
    return tuple(Usage(name=name, **found[name]) for name in sorted(found))


def month_of(at: str) -> str:
    """When the calendar month of this instant began, in UTC."""
    return f"{at[: len('YYYY-MM')]}-01T00:00:00Z"


def spent(session: Session, row: tables.QueueEntry, at: str) -> dict[str, float]:
    """The columns that change when an attempt of an entry ends at this instant. None of a run: its
    own event log tells."""
    if row.kind in RUN_KINDS:
        return {}
    pool = session.get(tables.PoolRow, row.pool)
    workers, accelerators = _since_start(row.started, row.slots, pool.gpus if pool else None, at)
    return {
        "worker_seconds": row.worker_seconds + workers,
        "accelerator_seconds": row.accelerator_seconds + accelerators,
    }


def _since_start(
    started: str | None, slots: int, gpus: float | None, at: str
) -> tuple[float, float]:
    """Seconds of an entry's slots, and of their accelerators, since its last start.
    ``gpus``: of a slot of its pool."""
    if started is None:
        return 0.0, 0.0
    # A clock that was set back takes nothing away.
    lasted = max((parse_time(at) - parse_time(started)).total_seconds(), 0.0) * slots
    return lasted, lasted * (gpus or 0.0)


def _owner(by: By, table: Any) -> Any:
    """What rows of a table with a project and a user are added up by."""
    if by == "pool":
        return col(tables.QueueEntry.pool)
    if by != "workspace":
        return col(table.project if by == "project" else table.user)
    p = tables.ProjectRow
    # No parameter stands in it: PostgreSQL would not see that it groups by what it selects.
    return select(p.workspace).where(p.name == table.project).scalar_subquery()
