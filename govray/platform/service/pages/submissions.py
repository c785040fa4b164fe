"""One submission: its state, why, its run, and what can be asked of it.

A button is there for who may press it, in a state in which it means something. Whoever sends the
form all the same is answered as over ``/v1``. Killing loses steps, so a page asks first.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlmodel import col

from govray.platform.service.acting import acting
from govray.platform.service.acting.acting import Act, Verb
from govray.platform.service.http.problems import Problem, not_found
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.form_fields import FormDep, then
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.submissions import ID
from govray.platform.service.visible.readers import RUN_READERS
from govray.platform.service.visible.visible_runs import (
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
    visit: VisitDep, submission: Id, ask: Annotated[str, Query(max_length=16)] = ""
) -> HTMLResponse:
    row = find_submission(visit.session, visit.caller, submission)
    allowed = [verb for verb in _meaningful(row) if _may(visit, row, verb)]
    return render(
        visit,
        "submission.html",
        row=row,
        file=row.config if reads_file(visit.session, visit.caller, row) else None,
        place=submissions.places(visit.session, [row.id]).get(row.id),
        allowed=allowed,
        asked_first=ASKED_FIRST,
        asking=ask if ask in allowed and ask in ASKED_FIRST else "",
        forks=row.kind in RUN_KINDS and _may(visit, row, "submit"),
        run=_run(visit, row),
    )


@router.post("/submissions/{submission}/{verb}")
def act(
    visit: VisitDep, submission: Id, verb: Annotated[str, Path(max_length=16)], _fields: FormDep
) -> Response:
    if verb not in VERBS:
        raise not_found("action", verb)
    row = acting.ask(visit.session, visit.caller, submission, VERBS[verb])
    return then(f"/submissions/{row.id}")


def _meaningful(row: Submission) -> list[Verb]:
    """What can be asked of it in its state, in the order of the buttons."""
    found = [VERBS[verb] for verb in submissions.asks(row.state)]
    if row.archived:
        found.append("unarchive")
    elif row.state in ENDED:
        found.append("archive")
    return found


def _may(visit: Visit, row: Submission, verb: Verb) -> bool:
    owner = None if verb == "submit" else row.user
    act = Act(verb=verb, pool=row.pool, priority=row.priority, slots=row.slots, owner=owner)
    try:
        acting.may_act(visit.session, visit.caller, row.project, act)
    except Problem:
        return False
    return True


def _run(visit: Visit, row: Submission) -> str | None:
    """Where the run or search that it became is shown, if it is indexed."""
    if row.run is None:
        return None
    trial = select(col(Trial.id)).where(col(Trial.id) == row.run, trials(visit.caller))
    if visit.session.execute(trial).first() is not None:
        return f"/trials/{row.run}"
    e = Experiment
    search = select(col(e.id)).where(col(e.id) == row.run, experiments(visit.caller))
    return f"/experiments/{row.run}" if visit.session.execute(search).first() is not None else None
