"""The queue: who works on it, what each pool holds, what runs and what waits.

Staff sees all of it, and others what is submitted to projects that they see. So for whom an entry
gave slots back is named to staff alone.

How many slots a pool has is in the store from the first pass of a reconciler on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import Integer, cast, func, select
from sqlmodel import Session, col

from govray.governance.formats.document import format_time
from govray.platform.service.identity.pagination import Page, PageDep
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.new_experiment import may_start
from govray.platform.service.pages.rendering import render
from govray.platform.service.visible.reach import is_staff
from govray.platform.service.visible.readers import RUN_READERS
from govray.platform.service.visible.visible_runs import submissions as readable
from govray.platform.store import pools as stated
from govray.platform.store import submissions
from govray.platform.store.leases import RECONCILER
from govray.platform.store.states import SubmissionState
from govray.platform.store.submissions import HELD
from govray.platform.store.tables import Lease, Submission

MOST_HELD = 200

router = APIRouter(dependencies=[RUN_READERS])

_SHOWN: tuple[Any, ...] = (
    *(Submission.id, Submission.kind, Submission.name, Submission.project, Submission.user),
    *(Submission.state, Submission.pool, Submission.priority, Submission.slots, Submission.run),
    *(Submission.attempt, Submission.submitted, Submission.started, Submission.finished),
    *(Submission.why, Submission.held, Submission.cap, Submission.gives_to),
)
"""Columns of a listing: without the files."""


@dataclass(frozen=True)
class PoolUse:
    """What a pool's entries hold, and what they wait for. ``slots``: None if nobody knows."""

    name: str
    slots: int | None
    running: int
    held: int
    waiting: int
    wanted: int


@dataclass(frozen=True)
class Work:
    """Whether somebody works on the queue. ``until``: when the last lease ends, or ended."""

    going_on: bool
    until: str | None


@router.get("/queue")
def queue(visit: VisitDep, page: PageDep) -> HTMLResponse:
    held = _held(visit)
    waiting, after = _waiting(visit, page)
    return render(
        visit,
        "queue.html",
        pools=_pools(visit),
        whole=is_staff(visit.caller),
        work=_work(visit.session, visit.request),
        held=held[:MOST_HELD],
        more_held=len(held) > MOST_HELD,
        waiting=waiting,
        places=submissions.places(visit.session, [each.id for each in waiting]),
        after=after,
        acts=may_start(visit.caller),
    )


@router.get("/submissions")
def listing(
    visit: VisitDep,
    page: PageDep,
    state: Annotated[str, Query(max_length=32)] = "",
    user: Annotated[str, Query(max_length=256)] = "",
    archived: Annotated[str, Query(max_length=8)] = "",
) -> HTMLResponse:
    statement: Any = select(*_SHOWN).where(
        col(Submission.archived).is_(archived == "yes"), readable(visit.caller)
    )
    if state in SubmissionState.__members__:
        statement = statement.where(col(Submission.state) == SubmissionState(state))
    if user:
        statement = statement.where(col(Submission.user) == user)
    columns: list[Any] = [Submission.submitted, Submission.id]
    rows, after = page.rows(visit.session, statement, columns, [str, str], descending=True)
    return render(
        visit,
        "submissions.html",
        submissions=rows,
        after=after,
        state=state,
        states=[each.value for each in SubmissionState],
        user=user,
        archived=archived == "yes",
        acts=may_start(visit.caller),
    )


def _pools(visit: Visit) -> list[PoolUse]:
    s = Submission
    slots = func.coalesce(col(s.held), col(s.slots))
    counted = visit.session.execute(
        select(col(s.pool), col(s.state), func.count(), func.sum(slots))
        .where(col(s.state).in_({*HELD, SubmissionState.QUEUED}), readable(visit.caller))
        .group_by(col(s.pool), col(s.state))
    ).all()
    found, sizes = [], {each.name: each.slots for each in stated.stated(visit.session)}
    for name in sorted({*sizes, *(row[0] for row in counted)}):
        own = [row for row in counted if row[0] == name]
        waiting = [row for row in own if row[1] == SubmissionState.QUEUED]
        holding = [row for row in own if row[1] != SubmissionState.QUEUED]
        sums = [sum(row[i] for row in rows) for rows in (holding, waiting) for i in (2, 3)]
        found.append(PoolUse(name, sizes.get(name), *sums))
    return found


def _work(session: Session, request: Request) -> Work:
    lease = session.get(Lease, RECONCILER)
    if lease is None:
        return Work(False, None)
    return Work(lease.until > format_time(request.app.state.clock()), lease.until)


def _held(visit: Visit) -> Sequence[Any]:
    statement = select(*_SHOWN).where(col(Submission.state).in_(HELD), readable(visit.caller))
    order = (col(Submission.pool), col(Submission.started), col(Submission.id))
    return visit.session.execute(statement.order_by(*order).limit(MOST_HELD + 1)).all()


def _waiting(visit: Visit, page: Page) -> tuple[Sequence[Any], str | None]:
    """What waits, by pool and in the order in which it is its turn."""
    # One direction for all columns, so that a cursor can name a position.
    turn = cast(-col(Submission.priority), Integer).label("turn")
    queued = col(Submission.state) == SubmissionState.QUEUED
    statement = select(*_SHOWN, turn).where(queued, readable(visit.caller))
    columns: list[Any] = [Submission.pool, turn, Submission.submitted, Submission.id]
    return page.rows(visit.session, statement, columns, [str, int, str, str])
