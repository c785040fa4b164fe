"""The queue: who works on it, what each pool holds, what runs and what waits.

Staff sees all of it, and others what is submitted to projects that they see. So for whom an entry
gave slots back is named to staff alone.

How many slots a pool has is in the store from the first pass of a reconciler on.

A button is there for who may press it, in a state in which it means something. A person who sends
the form all the same is answered as over ``/v1``. Killing loses steps, so a page asks first.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from sqlalchemy import Integer, cast, func, select
from sqlmodel import col

from govray.platform.service.acting import acting
from govray.platform.service.acting.acting import Demand, Verb
from govray.platform.service.http.problems import Problem
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.identity.rights import everywhere
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.new_experiment import may_start
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.experiments import VERBS
from govray.platform.service.visible.visible_runs import entries, reads_file
from govray.platform.store import pools as stated
from govray.platform.store import queue_entries
from govray.platform.store.leases import RECONCILER, standstill
from govray.platform.store.queue_entries import ENDED, HELD
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import Lease, QueueEntry

MOST_HELD = 200

router = APIRouter(dependencies=[needs("view")])

LISTED: tuple[Any, ...] = (
    *(QueueEntry.id, QueueEntry.kind, QueueEntry.name, QueueEntry.project, QueueEntry.user),
    *(QueueEntry.state, QueueEntry.pool, QueueEntry.priority, QueueEntry.slots),
    *(QueueEntry.attempt, QueueEntry.submitted, QueueEntry.started, QueueEntry.finished),
    *(QueueEntry.why, QueueEntry.held, QueueEntry.cap, QueueEntry.gives_to),
)
"""Columns of a listing: without the files."""


ASKED_FIRST = frozenset({"kill"})
"""What a page of its own asks about before it is done."""


@router.get("/queue")
def queue(visit: VisitDep, page: PageDep) -> HTMLResponse:
    s = QueueEntry
    running = select(*LISTED).where(col(s.state).in_(HELD), entries(visit.caller))
    order = (col(s.pool), col(s.started), col(s.id))
    held = visit.session.execute(running.order_by(*order).limit(MOST_HELD + 1)).all()
    # In the order of turns, in one direction for all columns: so a cursor can name a position.
    turn = cast(-col(s.priority), Integer).label("turn")
    queued = col(s.state) == ExperimentState.QUEUED
    statement = select(*LISTED, turn).where(queued, entries(visit.caller))
    waiting, after = page.rows(visit.session, statement, [s.pool, turn, s.submitted, s.id])
    still, lease = standstill(visit.session, at=visit.at), visit.session.get(Lease, RECONCILER)
    return render(
        visit,
        "queue.html",
        pools=_pools(visit),
        whole=everywhere(visit.caller, "view"),
        until=lease.until if lease else None,
        standstill=still,
        whys={each.id: queue_entries.why(each, still) for each in waiting},
        held=held[:MOST_HELD],
        more_held=len(held) > MOST_HELD,
        waiting=waiting,
        places=queue_entries.places(visit.session, [each.id for each in waiting]),
        after=after,
        acts=may_start(visit.caller),
    )


def _pools(visit: Visit) -> list[tuple[str, int | None, list[int]]]:
    """Name and slots of each pool, None if nobody knows. What its entries hold, and wait for."""
    s = QueueEntry
    slots = func.coalesce(col(s.held), col(s.slots))
    counted = visit.session.execute(
        select(col(s.pool), col(s.state), func.count(), func.sum(slots))
        .where(col(s.state).in_({*HELD, ExperimentState.QUEUED}), entries(visit.caller))
        .group_by(col(s.pool), col(s.state))
    ).all()
    found, sizes = [], {each.name: each.slots for each in stated.stated(visit.session)}
    for name in sorted({*sizes, *(row[0] for row in counted)}):
        own = [row for row in counted if row[0] == name]
        waiting = [row for row in own if row[1] == ExperimentState.QUEUED]
        holding = [row for row in own if row[1] != ExperimentState.QUEUED]
        sums = [sum(row[i] for row in rows) for rows in (holding, waiting) for i in (2, 3)]
        found.append((name, sizes.get(name), sums))
    return found


def standing(visit: Visit, row: QueueEntry, ask: str) -> dict[str, Any]:
    """What a page shows of an entry: how it stands, what was asked for, and what can be done.
    ``ask``: the verb that the page asks about."""
    allowed = [verb for verb in _meaningful(row) if allows(visit, row, verb)]
    return {
        "entry": row,
        "why": queue_entries.why(row, standstill(visit.session, at=visit.at)),
        "file": row.config if reads_file(visit.session, visit.caller, row) else None,
        "place": queue_entries.places(visit.session, [row.id]).get(row.id),
        "allowed": allowed,
        "asked_first": ASKED_FIRST,
        "asking": ask if ask in allowed and ask in ASKED_FIRST else "",
        "forks": row.kind in RUN_KINDS and allows(visit, row, "submit"),
    }


def _meaningful(row: QueueEntry) -> list[Demand]:
    """What can be asked of it in its state, in the order of the buttons."""
    found = [verb for verb in VERBS if verb in queue_entries.asks(row.state)]
    if row.archived:
        found.append("unarchive")
    elif row.state in ENDED:
        found.append("archive")
    return found


def allows(visit: Visit, row: Any, verb: Verb, **more: Any) -> bool:
    """Whether the caller may do this with an entry of the queue. ``more``: as `may_act` has it."""
    owner = None if verb == "submit" else row.user
    try:
        acting.may_act(visit, row.project, verb, owner=owner, **more)
    except Problem:
        return False
    return True
