"""Tasks: notebooks, shells, TensorBoard and commands, with a way in, an end, and a form to start.

A task's own pages lie on its own host (`govray.platform.service.http.origin`). ``form-action
'self'`` keeps a browser from following a form there, so opening answers with a page that leads on.
What that page names is good once and for a minute, and no cache keeps it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select as columns_of
from sqlmodel import col, select

from govray.errors import GovrayError
from govray.governance.submission.submission import PRIORITY
from govray.governance.submission.yaml_overrides import written
from govray.platform.service.acting import acting
from govray.platform.service.acting.acting import DEFAULT, Demand
from govray.platform.service.http import problems
from govray.platform.service.http.origin import TaskOrigins
from govray.platform.service.http.problems import Problem, not_valid
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import Page, PageDep, filtered
from govray.platform.service.identity.repeats import claim
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.form_fields import FormDep, checked, filled_in, form_of, then
from govray.platform.service.pages.new_experiment import may_start
from govray.platform.service.pages.queue import LISTED, allows, standing
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.tasks import NewTask, find_task, open_task, submit_task
from govray.platform.service.visible.task_files import kept_files, output_end
from govray.platform.service.visible.visible_runs import entries
from govray.platform.store import queue_entries
from govray.platform.store.leases import standstill
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import ProjectRow, QueueEntry
from govray.platform.tasks.task_file import KINDS, LONGEST_IDLE, SHOWN

router = APIRouter(dependencies=[needs("view")])

STARTED = (*SHOWN, "command")
"""Kinds that the form starts. Inference takes a file, by ``/v1/tasks``."""


@dataclass(frozen=True)
class TaskForm:
    """The form as somebody filled it in. What is empty is as the task or the project has it."""

    name: str = ""
    kind: str = "notebook"
    idle: str = ""
    runs: str = ""
    argv: str = ""
    project: str = DEFAULT
    pool: str = ""
    priority: str = ""
    key: str = ""

    def task(self) -> NewTask:
        if self.kind not in STARTED:
            raise not_valid("kind", f"one of {', '.join(STARTED)} is one")
        mine = {"idle": self.kind in SHOWN, "runs": self.kind == "tensorboard"}
        mine["argv"] = self.kind == "command"
        for field, belongs in mine.items():
            if getattr(self, field) and not belongs:
                raise not_valid(field, f"a {self.kind} has none", "Leave the field empty")
        file: dict[str, Any] = {"kind": self.kind}
        if self.idle:
            try:
                file["idle_minutes"] = float(self.idle)
            except ValueError:
                raise not_valid("idle", "a number of minutes is one") from None
        if self.runs:
            file["runs"] = self.runs.split()
        if self.kind == "command":
            file["argv"] = self.argv.splitlines()
        given = {"name": self.name, "project": self.project, "config": written(file)}
        for field in ("pool", "priority"):
            given |= {field: value} if (value := getattr(self, field)) else {}
        return checked(NewTask, given)


@router.get("/tasks")
def listing(
    visit: VisitDep,
    page: PageDep,
    state: Annotated[str, Query(max_length=32)] = "",
    user: Annotated[str, Query(max_length=256)] = "",
) -> HTMLResponse:
    filled = TaskForm(project=acting.offered(visit.session, visit.caller))
    return _tasks(visit, page, filled, state=state, user=user)


@router.post("/tasks", dependencies=[needs("submit")])
def start(visit: VisitDep, fields: FormDep, page: PageDep) -> Response:
    filled = filled_in(TaskForm, fields)
    try:
        claim(visit, filled.key or None, repr(filled).encode())
        submit_task(visit, filled.task())
    except (Problem, GovrayError) as error:
        problem = problems.of(error)
        if problem is None or problem.status_code not in (400, 409, 422):
            raise
        visit.session.rollback()
        return _tasks(visit, page, filled, problem)
    return then("/tasks")


@router.post("/tasks/{task}/open", dependencies=[needs("submit")])
def enter(visit: VisitDep, task: str, _fields: FormDep) -> HTMLResponse:
    opened = open_task(visit, find_task(visit, task))
    return render(visit, "task_open.html", url=opened.url, seconds=opened.seconds)


@router.get("/tasks/{task}")
def of_task(
    visit: VisitDep, task: str, ask: Annotated[str, Query(max_length=16)] = ""
) -> HTMLResponse:
    row, storage = find_task(visit, task), visit.request.app.state.settings.storage
    files, output = [], ""
    if allows(visit, row, "open", what="tasks"):
        with suppress(Problem):  # nothing is kept yet, or it is out of reach
            files = kept_files(storage, row.id)
            output = output_end(storage, row.id)
    return render(visit, "task.html", **standing(visit, row, ask), files=files, output=output)


@router.post("/tasks/{task}/{verb}", dependencies=[needs("submit"), Depends(form_of)])
def act(visit: VisitDep, task: str, verb: Demand) -> Response:
    acting.ask(visit, find_task(visit, task), verb)
    return then(f"/tasks/{task}")


def _tasks(
    visit: Visit,
    page: Page,
    filled: TaskForm,
    problem: Problem | None = None,
    *,
    state: str = "",
    user: str = "",
) -> HTMLResponse:
    s = QueueEntry
    statement = filtered(
        columns_of(*LISTED).where(col(s.kind).in_(KINDS), entries(visit.caller)),
        *((s.archived, False), (s.user, user or None)),
        (s.state, ExperimentState.__members__.get(state)),
    )
    order = (s.submitted, s.id)
    rows, after = page.rows(visit.session, statement, order, descending=True)
    still = standstill(visit.session, at=visit.at)
    origins: TaskOrigins | None = visit.request.app.state.settings.tasks
    allowed = _allowed(visit, rows)
    running = ExperimentState.RUNNING
    return render(
        visit,
        "tasks.html",
        status=problem.status_code if problem else 200,
        tasks=rows,
        whys={row.id: queue_entries.why(row, still) for row in rows},
        after=after,
        opens={
            row.id
            for row in rows
            if origins and row.kind in SHOWN and row.state == running and row.id in allowed
        },
        stops={row.id for row in rows if "stop" in queue_entries.asks(row.state)} & allowed,
        state=state,
        states=[each.value for each in ExperimentState],
        user=user,
        acts=may_start(visit.caller),
        shows=origins is not None,
        filled=replace(filled, key=filled.key or secrets.token_urlsafe(16)),
        problem=problem,
        kinds=STARTED,
        longest_idle=LONGEST_IDLE,
        priority=PRIORITY,
    )


def _allowed(visit: Visit, rows: Sequence[Any]) -> set[str]:
    """Of these the ones that ``caller`` may open and stop: its own, and an admin's."""
    if not may_start(visit.caller):
        return set()
    p = ProjectRow
    # Held while `may_act` looks each of them up, so that it asks the store for none.
    held = visit.session.exec(select(p).where(col(p.name).in_({row.project for row in rows}))).all()
    known: dict[tuple[str, str], bool] = {}
    for row in rows:
        if (key := (row.project, row.user)) not in known:
            known[key] = allows(visit, row, "open", what="tasks")
    del held
    return {row.id for row in rows if known[row.project, row.user]}
