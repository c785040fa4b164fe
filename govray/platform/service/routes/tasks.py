"""Notebooks, shells, TensorBoard, commands and inference: submitting them, and opening them.

A task is an entry of the queue, and goes by its project as an experiment does
(`govray.platform.service.acting.acting.may_act`). The same people submit tasks, within the
project's pools, priorities and slots, and see them. Its owner opens a task, and an admin of the
project or of the organisation.

To open a task gives an address on the task's own host, good once and for a minute. Nothing of the
task goes through this service's own origin (`govray.platform.service.http.origin` says why).
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field
from sqlmodel import col, select

from govray.governance.formats.document import Name
from govray.platform.service.acting import acting, project_rules
from govray.platform.service.acting.acting import Demand
from govray.platform.service.http.answer import Answer
from govray.platform.service.http.origin import TaskOrigins
from govray.platform.service.http.problems import Problem, refused
from govray.platform.service.http.statuses import refusing
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import Listing, PageDep, filtered
from govray.platform.service.identity.repeats import OnceDep
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes import archives
from govray.platform.service.routes.experiments import Submitted, verbs
from govray.platform.service.tasks.gate import answering
from govray.platform.service.tasks.tickets import ENTRY_SECONDS, ticket
from govray.platform.service.visible.lookup import absent
from govray.platform.service.visible.visible_runs import entries, reads_file
from govray.platform.store import queue_entries
from govray.platform.store.leases import standstill
from govray.platform.store.queue_entries import LONGEST_CONFIG
from govray.platform.store.tables import QueueEntry
from govray.platform.tasks.task_file import KINDS, SHOWN, read_task
from govray.platform.wire.answers import Task

router = APIRouter(tags=["tasks"])

SLOTS = 1
"""That a task holds while it runs."""

_TaskId = Annotated[
    str,
    Path(
        pattern="^[a-z0-9-]{1,63}$",
        examples=["s-20261124-090500-0123abcd"],
        description="The task's id in the queue.",
    ),
]


class NewTask(Submitted):
    """What to run."""

    name: Name
    config: Annotated[str, Field(max_length=LONGEST_CONFIG)] = Field(
        description="The task file, as docs/queue.md has it."
    )


class OpenedTask(Answer):
    """Where to look at a task."""

    url: str = Field(description="Good once.")
    seconds: int = Field(description="How long it is good.")


def find_task(visit: VisitDep, task: _TaskId) -> QueueEntry:
    """The task, if the caller may see it. Raises 404."""
    row = visit.session.exec(
        select(QueueEntry).where(
            col(QueueEntry.id) == task, col(QueueEntry.kind).in_(KINDS), entries(visit.caller)
        )
    ).one_or_none()
    if row is None:
        raise absent(visit.caller, "task", task, "Look at /v1/tasks")
    return row


KnownTask = Annotated[QueueEntry, Depends(find_task)]


@router.get("/tasks", dependencies=[needs("view")])
def list_tasks(
    visit: VisitDep,
    page: PageDep,
    user: Annotated[
        str | None, Query(max_length=200, description="Whose they are.", examples=["ada"])
    ] = None,
) -> Listing[Task]:
    """The tasks that you may see, the newest first."""
    statement = select(QueueEntry).where(col(QueueEntry.kind).in_(KINDS), entries(visit.caller))
    statement = filtered(statement, (QueueEntry.user, user))
    order = (QueueEntry.submitted, QueueEntry.id)
    return page.listing(visit.session, statement, order, partial(_shown, visit), descending=True)


@router.post("/tasks", status_code=201, dependencies=[needs("submit")])
def submit_task(visit: OnceDep, new: NewTask) -> Task:
    """Put a task in the queue, with the project's defaults and within its limits."""
    archives.check_there(visit, new.archive)
    task = read_task(new.config, where="config")
    project = new.project or acting.DEFAULT
    pool, priority = project_rules.check_task(
        visit.session,
        project,
        visit.caller,
        kind=task.kind,
        slots=SLOTS,
        pool=new.pool,
        priority=new.priority,
    )
    acting.may_act(visit, project, "submit", what="tasks")
    row = acting.traced(
        visit,
        queue_entries.submit,
        kind=task.kind,
        name=new.name,
        project=project,
        pool=pool,
        priority=priority,
        config=new.config,
        slots=SLOTS,
        archive=new.archive,
    )
    visit.session.commit()
    return _shown(visit, row)


@router.get("/tasks/{task}", dependencies=[needs("view")])
def get_task(visit: VisitDep, row: KnownTask) -> Task:
    """One task."""
    file = row.config if reads_file(visit.session, visit.caller, row) else None
    return _shown(visit, row).model_copy(update={"file": file})


def _act(visit: Visit, row: QueueEntry, verb: Demand) -> Task:
    acting.ask(visit, row, verb)
    return _shown(visit, row)


verbs(router, "/tasks/{task}", find_task, _act, Task, always="unarchive")


@router.post("/tasks/{task}:open", dependencies=[needs("submit")], responses=refusing(409, 502))
def open_task(visit: VisitDep, row: KnownTask) -> OpenedTask:
    """An address that shows the task, good once and for a minute. 502: it could not be shown.

    It sets a cookie of the task's own host, and nothing of it is good for this service.
    """
    origins: TaskOrigins | None = visit.request.app.state.settings.tasks
    check_opens(visit, row)
    if origins is None:
        raise refused(
            "This service shows no tasks",
            "Its operator starts it with govray serve --tasks-port",
        )
    if row.kind not in SHOWN:
        raise refused(f"A task of the kind {row.kind} shows nothing")
    try:
        answering(row, origins)
    except Problem as problem:
        if problem.status_code != 503:  # what does not answer yet may be waited for
            raise
    secret = ticket(visit.session, row.id, visit.caller, at=datetime.now(UTC))
    visit.audit.write(visit.session, "task opened", row.id, {"kind": row.kind, "owner": row.user})
    visit.session.commit()
    url = f"{origins.of(row.id)}/tasks/{row.id}/enter?ticket={secret}"
    return OpenedTask(url=url, seconds=ENTRY_SECONDS)


def check_opens(visit: Visit, row: QueueEntry) -> None:
    """Return if the caller may open a task, and so have what it keeps. Raises 403."""
    acting.may_act(visit, row.project, "open", what="tasks", owner=row.user)


def _shown(visit: Visit, row: QueueEntry) -> Task:
    given = row.model_dump(include=set(Task.model_fields)) | {"shown": row.kind in SHOWN}
    given["why"] = queue_entries.why(row, standstill(visit.session, at=visit.at))
    return Task.model_validate(given)
