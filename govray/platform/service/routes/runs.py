"""Runs, and what they measured and decided. They are for staff, and for who has a role in their
project.

Suppliers and the public have no route here: a run's settings and numbers are its owner's. What a
corpus was used for, its supplier reads at the corpus.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from sqlalchemy import String, case, cast
from sqlmodel import Session, col, func, select

from govray.governance.formats.document import Timestamp
from govray.platform.service.http.answer import Answer
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import (
    Listing,
    PageDep,
    answers,
    columns_of,
    filtered,
    sorting,
)
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.visible import visible_runs
from govray.platform.service.visible.visible_runs import find_run, told_once
from govray.platform.store import tables
from govray.platform.store.states import CheckpointState, RunState
from govray.platform.wire.answers import Checkpoint, Metric, Run

router = APIRouter(tags=["runs"], dependencies=[needs("view")])

Filter = Annotated[str | None, Query(max_length=200)]
Since = Annotated[Timestamp | None, Query(description="Only those that began then or later.")]
Before = Annotated[Timestamp | None, Query(description="Only those that began earlier.")]


_LARGEST = 1e308
_BEYOND = 1.7e308
"""Larger than any loss that an order counts."""

RUN_ORDERS: dict[str, Any] = {
    "started": col(tables.RunRow.started),
    "name": col(tables.RunRow.id),
    "loss": case((col(tables.RunRow.loss).between(-_LARGEST, _LARGEST), col(tables.RunRow.loss))),
    "step": col(tables.RunRow.step),
    "state": cast(col(tables.RunRow.state), String),
}
"""What lists of runs are sorted by."""


def run_order(sort: str, *, down: bool) -> Any:
    """The column of one of `RUN_ORDERS`. A run without a loss, or with one that is not finite,
    stands last in either direction."""
    key = RUN_ORDERS[sort]
    if sort == "loss":
        key = func.coalesce(key, -_BEYOND if down else _BEYOND)
    return key.label("sorted_by")


class Decision(Answer):
    """A stop, restart, gate, flag, rollback or refusal."""

    source: str
    number: int
    kind: str
    at: str | None = None
    step: int | None = None
    corpus: str | None = None
    reason: str
    evidence: dict[str, Any]


def started_between(statement: Any, started: Any, since: str | None, before: str | None) -> Any:
    """The statement with the bounds that are given; times are texts that sort."""
    if since is not None:
        statement = statement.where(col(started) >= since)
    return statement if before is None else statement.where(col(started) < before)


@router.get("/runs")
def runs(
    visit: VisitDep,
    page: PageDep,
    experiment: Filter = None,
    state: RunState | None = None,
    policy: Filter = None,
    since: Since = None,
    before: Before = None,
    sort: Annotated[str, sorting(*RUN_ORDERS)] = "-started",
) -> Listing[Run]:
    """The runs that you may read, the latest first."""
    row, e, down = tables.RunRow, tables.ExperimentRow, sort.startswith("-")
    key = run_order(sort.removeprefix("-"), down=down)
    statement = filtered(
        select(*(*columns_of(row, Run), key))
        .join(e, col(e.id) == col(row.experiment))
        .where(visible_runs.runs(visit.caller), visible_runs.in_a_project(e.project)),
        *((row.experiment, experiment), (row.state, state), (row.policy, policy)),
    )
    statement = started_between(statement, row.started, since, before)
    return page.listing(visit.session, statement, (key, row.id), answers(Run), descending=down)


def known_run(visit: VisitDep, run: str) -> tables.RunRow:
    return find_run(visit.session, visit.caller, run)


KnownRun = Annotated[tables.RunRow, Depends(known_run)]


@router.get("/runs/{run}")
def run(known: KnownRun) -> Run:
    """One run."""
    return Run.model_validate(known)


@router.get("/runs/{run}/metrics")
def metrics(
    session: SessionDep,
    known: KnownRun,
    page: PageDep,
    group: Filter = None,
    name: Filter = None,
    archived: Annotated[
        bool, Query(description="Also what a restart or rollback superseded.")
    ] = False,
) -> Listing[Metric]:
    """What a run measured, by group, name and step."""
    statement, order = numbers(session, known.id, group, name, archived=archived)
    return page.listing(session, statement, order, answers(Metric))


def numbers(
    session: Session, run: str, group: str | None, name: str | None, *, archived: bool
) -> tuple[Any, tuple[Any, ...]]:
    """The numbers of a run by these filters, and the columns that tell two of them apart. With
    one that all have alike, the index could not go on at a step.

    Args:
        archived: Those that a restart superseded too.
    """
    m = tables.MetricRow
    if name is not None and group is None:
        group = _only_group(session, run, name)
    statement = filtered(
        select(*columns_of(m, Metric)).where(m.run == run),
        *((m.group, group), (m.name, name), (m.archived, None if archived else False)),
    )
    open_ = [column for column, given in ((m.group, group), (m.name, name)) if given is None]
    return statement, (*open_, m.step, m.attempt)


_MOST_GROUPS = 32


def _only_group(session: Session, run: str, name: str) -> str | None:
    """The group of all numbers of this name, if it is one of a few. The index has the group first.
    Without it a million numbers would be looked through for each page."""
    m = tables.MetricRow
    found: list[str] = []
    group: str | None = None
    for _ in range(_MOST_GROUPS):
        following = select(func.min(col(m.group))).where(m.run == run)
        if group is not None:
            following = following.where(col(m.group) > group)
        if (group := session.scalar(following)) is None:
            return found[0] if len(found) == 1 else None
        of_name = select(m.step).where(m.run == run, m.group == group, m.name == name)
        if session.scalar(of_name.limit(1)) is not None:
            found.append(group)
    return None


@router.get("/runs/{run}/decisions")
def decisions(
    session: SessionDep, known: KnownRun, page: PageDep, kind: Filter = None
) -> Listing[Decision]:
    """What was decided during a run, and why."""
    row = tables.DecisionRow
    statement = filtered(select(row).where(row.run == known.id, told_once()), (row.kind, kind))
    return page.listing(session, statement, (row.source, row.number), Decision.model_validate)


@router.get("/runs/{run}/checkpoints")
def checkpoints(session: SessionDep, known: KnownRun, page: PageDep) -> Listing[Checkpoint]:
    """A run's checkpoints. One that is being written, or failed, is not among them."""
    row = tables.CheckpointRow
    whole = (CheckpointState.COMPLETED, CheckpointState.DELETED)
    statement = select(row).where(row.run == known.id, col(row.state).in_(whole))
    return page.listing(session, statement, (row.step,), Checkpoint.model_validate)
