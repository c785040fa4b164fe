"""One submission: its state, why, its run, and what can be asked of it.

A button is there for who may press it, in a state in which it means something. Whoever sends the
form all the same is answered as over ``/v1``. Killing loses steps, so a page asks first.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlmodel import Session, col

from govray.platform.service.acting import acting
from govray.platform.service.acting.acting import Act, Verb
from govray.platform.service.http.problems import Problem, not_found
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import Caller, CallerDep
from govray.platform.service.pages.form_fields import FormDep, then
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.submissions import ID
from govray.platform.service.visible.visibility import (
    RUN_READERS,
    experiments,
    find_submission,
    reads_file,
    trials,
)
from govray.platform.store import submissions
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.submissions import ENDED
from govray.platform.store.tables import Experiment, Submission, Trial

router = APIRouter(dependencies=[RUN_READERS])

Id = Annotated[str, Path(pattern=ID)]

VERBS: dict[str, Verb] = {
    "stop": "stop",
    "kill": "kill",
    "resume": "resume",
    "archive": "archive",
    "unarchive": "unarchive",
}
ASKED_FIRST = frozenset({"kill"})
"""What a page of its own asks about before it is done."""


@router.get("/submissions/{submission}")
def of_submission(
    request: Request,
    submission: Id,
    caller: CallerDep,
    session: SessionDep,
    ask: Annotated[str, Query(max_length=16)] = "",
) -> HTMLResponse:
    row = find_submission(session, caller, submission)
    allowed = [verb for verb in _meaningful(row) if _may(session, caller, row, verb)]
    return render(
        request,
        caller,
        "submission.html",
        row=row,
        file=row.config if reads_file(session, caller, row) else None,
        place=submissions.places(session, [row.id]).get(row.id),
        allowed=allowed,
        asked_first=ASKED_FIRST,
        asking=ask if ask in allowed and ask in ASKED_FIRST else "",
        forks=row.kind in RUN_KINDS and _may(session, caller, row, "submit"),
        run=_run(session, caller, row),
    )


@router.post("/submissions/{submission}/{verb}")
def act(
    submission: Id,
    verb: Annotated[str, Path(max_length=16)],
    caller: CallerDep,
    session: SessionDep,
    _fields: FormDep,
) -> Response:
    if verb not in VERBS:
        raise not_found("action", verb)
    row = acting.ask(session, caller, submission, VERBS[verb])
    return then(f"/submissions/{row.id}")


def _meaningful(row: Submission) -> list[Verb]:
    """What can be asked of it in its state, in the order of the buttons."""
    found = [VERBS[verb] for verb in submissions.asks(row.state)]
    if row.archived:
        found.append("unarchive")
    elif row.state in ENDED:
        found.append("archive")
    return found


def _may(session: Session, caller: Caller, row: Submission, verb: Verb) -> bool:
    owner = None if verb == "submit" else row.user
    act = Act(verb=verb, pool=row.pool, priority=row.priority, slots=row.slots, owner=owner)
    try:
        acting.may_act(session, caller, row.project, act)
    except Problem:
        return False
    return True


def _run(session: Session, caller: Caller, row: Submission) -> str | None:
    """Where the run or search that it became is shown, if it is indexed."""
    if row.run is None:
        return None
    trial = select(col(Trial.id)).where(col(Trial.id) == row.run, trials(caller))
    if session.execute(trial).first() is not None:
        return f"/trials/{row.run}"
    e = Experiment
    search = select(col(e.id)).where(col(e.id) == row.run, experiments(caller))
    return f"/experiments/{row.run}" if session.execute(search).first() is not None else None
