"""The queue: who works on it, what each pool holds, what runs and what waits. And one submission.

Staff sees all of it, and others what is submitted to projects that they see. So for whom an entry
gave slots back is named to staff alone.

How many slots a pool has is in the store from the first pass of a reconciler on.

A button is there for who may press it, in a state in which it means something. Whoever sends the
form all the same is answered as over ``/v1``. Killing loses steps, so a page asks first.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import Integer, cast, func, select
from sqlmodel import col

from govray.platform.service.acting import acting
from govray.platform.service.acting.acting import Act, Verb
from govray.platform.service.http.problems import Problem, not_found
from govray.platform.service.identity.pagination import PageDep, filtered
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.form_fields import FormDep, then
from govray.platform.service.pages.new_experiment import may_start
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.submissions import ID
from govray.platform.service.visible.reach import is_staff
from govray.platform.service.visible.readers import RUN_READERS
from govray.platform.service.visible.visible_runs import (
    experiments,
    find_submission,
    reads_file,
    runs,
)
from govray.platform.service.visible.visible_runs import submissions as readable
from govray.platform.store import pools as stated
from govray.platform.store import submissions
from govray.platform.store.leases import RECONCILER
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.states import SubmissionState
from govray.platform.store.submissions import ENDED, HELD
from govray.platform.store.tables import Experiment, Lease, Run, Submission

MOST_HELD = 200

router = APIRouter(dependencies=[RUN_READERS])

LISTED: tuple[Any, ...] = (
    *(Submission.id, Submission.kind, Submission.name, Submission.project, Submission.user),
    *(Submission.state, Submission.pool, Submission.priority, Submission.slots, Submission.run),
    *(Submission.attempt, Submission.submitted, Submission.started, Submission.finished),
    *(Submission.why, Submission.held, Submission.cap, Submission.gives_to),
)
"""Columns of a listing: without the files."""


Id = Annotated[str, Path(pattern=ID)]

_ACTS: tuple[Verb, ...] = ("stop", "kill", "resume", "archive", "unarchive")
VERBS: dict[str, Verb] = {each: each for each in _ACTS}
ASKED_FIRST = frozenset({"kill"})
"""What a page of its own asks about before it is done."""


@router.get("/queue")
def queue(visit: VisitDep, page: PageDep) -> HTMLResponse:
    s = Submission
    running = select(*LISTED).where(col(s.state).in_(HELD), readable(visit.caller))
    order = (col(s.pool), col(s.started), col(s.id))
    held = visit.session.execute(running.order_by(*order).limit(MOST_HELD + 1)).all()
    # In the order of turns, in one direction for all columns: so a cursor can name a position.
    turn = cast(-col(s.priority), Integer).label("turn")
    queued = col(s.state) == SubmissionState.QUEUED
    statement = select(*LISTED, turn).where(queued, readable(visit.caller))
    waiting, after = page.rows(visit.session, statement, [s.pool, turn, s.submitted, s.id])
    lease = visit.session.get(Lease, RECONCILER)
    return render(
        visit,
        "queue.html",
        pools=_pools(visit),
        whole=is_staff(visit.caller),
        until=lease.until if lease else None,
        going_on=lease is not None and lease.until > visit.at,
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
    s = Submission
    statement = filtered(
        select(*LISTED).where(readable(visit.caller)),
        *((s.archived, archived == "yes"), (s.user, user or None)),
        (s.state, SubmissionState.__members__.get(state)),
    )
    order = (s.submitted, s.id)
    rows, after = page.rows(visit.session, statement, order, descending=True)
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


def _pools(visit: Visit) -> list[tuple[str, int | None, list[int]]]:
    """Name and slots of each pool, None if nobody knows. What its entries hold, and wait for."""
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
        found.append((name, sizes.get(name), sums))
    return found


@router.get("/submissions/{submission}")
def of_submission(
    visit: VisitDep, submission: Id, ask: Annotated[str, Query(max_length=16)] = ""
) -> HTMLResponse:
    row = find_submission(visit.session, visit.caller, submission)
    allowed = [verb for verb in _meaningful(row) if allows(visit, row, verb)]
    return render(
        visit,
        "submission.html",
        row=row,
        file=row.config if reads_file(visit.session, visit.caller, row) else None,
        place=submissions.places(visit.session, [row.id]).get(row.id),
        allowed=allowed,
        asked_first=ASKED_FIRST,
        asking=ask if ask in allowed and ask in ASKED_FIRST else "",
        forks=row.kind in RUN_KINDS and allows(visit, row, "submit"),
        run=_run(visit, row),
    )


@router.post("/submissions/{submission}/{verb}")
def act(
    visit: VisitDep, submission: Id, verb: Annotated[str, Path(max_length=16)], _fields: FormDep
) -> Response:
    if verb not in VERBS:
        raise not_found("action", verb)
    row = acting.ask(visit, submission, VERBS[verb])
    return then(f"/submissions/{row.id}")


def _meaningful(row: Submission) -> list[Verb]:
    """What can be asked of it in its state, in the order of the buttons."""
    found = [VERBS[verb] for verb in submissions.asks(row.state)]
    if row.archived:
        found.append("unarchive")
    elif row.state in ENDED:
        found.append("archive")
    return found


def allows(visit: Visit, row: Any, verb: Verb, **more: Any) -> bool:
    """Whether the caller may do this with an entry of the queue. ``more``: fields of `Act`."""
    owner = None if verb == "submit" else row.user
    try:
        acting.may_act(visit, row.project, Act(verb=verb, owner=owner, **more))
    except Problem:
        return False
    return True


def _run(visit: Visit, row: Submission) -> str | None:
    """Where the run or search that it became is shown, if it is indexed."""
    for table, seen, place in (
        (Run, runs(visit.caller), "runs"),
        (Experiment, experiments(visit.caller), "experiments"),
    ):
        found = select(col(table.id)).where(col(table.id) == row.run, seen)
        if row.run is not None and visit.session.execute(found).first() is not None:
            return f"/{place}/{row.run}"
    return None
