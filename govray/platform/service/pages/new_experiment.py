"""Starting an experiment: a text, then what it would cost and which policy applies, then the queue.

1. ``GET /new`` is the form: empty, or for the fork of another.
2. ``POST /new`` checks it and shows what would be submitted. Nothing is written.
3. ``POST /experiments`` submits it, and goes on to its page. The form of step 2 has a key, so a
   second press of its button finds the first one's experiment.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from govray.errors import Refused
from govray.governance.submission.submission import MOST_TAGS, PRIORITY, WORD
from govray.governance.submission.yaml_overrides import LONGEST_OVERRIDE, MOST_OVERRIDES
from govray.platform.service.acting import acting
from govray.platform.service.acting.acting import DEFAULT, SentExperiment
from govray.platform.service.http import problems
from govray.platform.service.http.problems import Problem, not_valid
from govray.platform.service.identity.access import Caller, needs
from govray.platform.service.identity.repeats import claim
from govray.platform.service.identity.rights import somewhere
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.form_fields import FormDep, filled_in, then
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.experiments import estimate, submitted
from govray.platform.store.experiment_tags import tags_of
from govray.platform.store.queue_entries import LONGEST_CONFIG

router = APIRouter(dependencies=[needs("submit")])


@dataclass(frozen=True)
class Filled:
    """The form as somebody filled it in.

    ``fork`` is the experiment that it is a fork of. An empty project, pool or priority
    is the file's, or else the usual one.
    """

    file: str = ""
    fork: str = ""
    project: str = ""
    pool: str = ""
    priority: str = ""
    tags: str = ""
    overrides: str = ""
    key: str = ""

    def asked(self) -> SentExperiment:
        for field in ("project", "pool"):
            value = getattr(self, field)
            if value and not re.fullmatch(WORD, value):
                raise not_valid(field, "letters, digits and . _ -, at most 64, are a name")
        priority = self.priority or "0"
        if not re.fullmatch(r"-?[0-9]{1,4}", priority) or abs(int(priority)) > PRIORITY:
            raise not_valid("priority", f"a whole number between -{PRIORITY} and {PRIORITY} is one")
        if len(self.file) > LONGEST_CONFIG:
            raise not_valid("file", f"longer than {LONGEST_CONFIG} characters")
        overrides = tuple(line for line in map(str.strip, self.overrides.splitlines()) if line)
        longest = max(map(len, overrides), default=0)
        if len(overrides) > MOST_OVERRIDES or longest > LONGEST_OVERRIDE:
            raise not_valid("overrides", f"at most {MOST_OVERRIDES}, one a line")
        tags = tuple(self.tags.replace(",", " ").split())
        if len(tags) > MOST_TAGS:
            raise not_valid("tags", f"at most {MOST_TAGS}")
        return SentExperiment(
            file=None if self.fork else self.file,
            fork_of=self.fork or None,
            overrides=overrides,
            project=self.project or None,
            pool=self.pool or None,
            priority=int(self.priority) if self.priority else None,
            tags=tags,
        )


def may_start(caller: Caller) -> bool:
    """Whether there may be a project that ``caller`` can submit to."""
    return somewhere(caller, "submit") and caller.has("write")


@router.get("/new")
def form(
    visit: VisitDep,
    fork: Annotated[str, Query(max_length=64)] = "",
    project: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    offered = acting.offered(visit.session, visit.caller)
    filled = Filled(project=project or ("" if offered == DEFAULT else offered))
    if fork:
        row = acting.forked(visit.session, visit.caller, fork)
        filled = Filled(
            fork=row.id,
            project=row.project,
            pool=row.pool,
            priority=str(row.priority),
            tags=" ".join(tags_of(visit.session, [row.id]).get(row.id, [])),
        )
    return _form(visit, filled)


@router.post("/new")
def check(visit: VisitDep, fields: FormDep) -> HTMLResponse:
    filled = filled_in(Filled, fields)
    if "change" in fields:
        return _form(visit, filled)
    try:
        ready = acting.prepare(visit, filled.asked())
    except (Problem, Refused) as error:
        return _again(visit, filled, error)
    return render(
        visit,
        "new_confirm.html",
        filled=replace(filled, key=secrets.token_urlsafe(16)),
        cost=estimate(visit, ready),
    )


@router.post("/experiments")
def submit(visit: VisitDep, fields: FormDep) -> Response:
    filled = filled_in(Filled, fields)
    try:
        claim(visit, filled.key or None, repr(filled).encode())
        row = submitted(visit, filled.asked())
    except (Problem, Refused) as error:
        return _again(visit, filled, error)
    return then(f"/experiments/{row.id}")


def _again(visit: Visit, filled: Filled, error: Problem | Refused) -> HTMLResponse:
    """The form as it was filled in, with what is wrong; other problems are pages of their own."""
    problem = problems.of(error)
    if problem is None or problem.status_code not in (409, 422):
        raise error
    visit.session.rollback()
    return _form(visit, filled, problem)


def _form(visit: Visit, filled: Filled, problem: Problem | None = None) -> HTMLResponse:
    origin = acting.forked(visit.session, visit.caller, filled.fork) if filled.fork else None
    return render(
        visit,
        "new.html",
        status=problem.status_code if problem else 200,
        filled=filled,
        origin=origin,
        problem=problem,
        longest=LONGEST_CONFIG,
        priority=PRIORITY,
    )
