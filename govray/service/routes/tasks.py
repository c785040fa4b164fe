"""Notebooks, shells, TensorBoard, commands and inference: submitting them, and opening them.

A task is an entry of the queue. Engineers and admins submit; each sees and opens their own, an
admin those of others. A task of somebody else answers as if it were not there.

To open a task gives an address on the task's own host, good once and for a minute. Nothing of the
task goes through this service's own origin (`govray.service.tasks.origin` says why).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session, col, select

from govray.governance.formats.document import format_time
from govray.service.access import AuditDep, CallerDep, require
from govray.service.answer import Answer
from govray.service.caller import Caller
from govray.service.pagination import Listing, PageDep
from govray.service.problems import Problem, not_found
from govray.service.project_rules import NowDep, check_task
from govray.service.session import SessionDep
from govray.service.tasks.origin import TaskOrigins
from govray.service.tasks.tickets import ENTRY_SECONDS, ticket
from govray.store import submissions
from govray.store.registry import ChangedBy
from govray.store.states import SubmissionState
from govray.store.submissions import LONGEST_CONFIG
from govray.store.tables import Submission
from govray.tasks.task_file import KINDS, read_task

router = APIRouter(tags=["tasks"])

USERS = Depends(require("admin", "engineer"))
WRITES = Depends(require("admin", "engineer", scope="write"))

Kind = Literal["notebook", "shell", "tensorboard", "command", "inference"]
SLOTS = 1
"""What a task holds."""
_SHOWN = frozenset({"notebook", "shell", "tensorboard"})

_TaskId = Annotated[
    str,
    Path(
        pattern="^[a-z0-9-]{1,63}$",
        examples=["s-20261124-090500-0123abcd"],
        description="The task's id in the queue.",
    ),
]
_Word = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]

_TASK: dict[str, Any] = {
    "id": "s-20261124-090500-0123abcd",
    "kind": "notebook",
    "name": "look-at-losses",
    "project": "default",
    "user": "ada",
    "state": "COMPLETED",
    "pool": "default",
    "submitted": "2026-11-24T09:05:00Z",
    "started": "2026-11-24T09:05:04Z",
    "finished": "2026-11-24T11:35:00Z",
    "why": "Nobody used it for 30 minutes",
    "shown": True,
}


class Task(Answer):
    """A task in the queue."""

    model_config = ConfigDict(json_schema_extra={"examples": [_TASK]})

    id: str
    kind: Kind
    name: str
    project: str
    user: str
    state: SubmissionState
    pool: str
    submitted: str
    started: str | None
    finished: str | None
    why: str | None
    shown: bool = Field(description="Whether it can be opened: it answers over HTTP while it runs.")


class NewTask(BaseModel):
    """What to run."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"name": "look-at-losses", "config": "kind: notebook\nidle_minutes: 30\n"},
            ]
        },
    )

    name: _Word
    config: Annotated[str, Field(max_length=LONGEST_CONFIG)] = Field(
        description="The task file, as docs/interactive.md has it."
    )
    project: _Word = "default"
    pool: _Word = "default"
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0


class OpenedTask(Answer):
    """Where to look at a task."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "url": "https://s-20261124-090500-0123abcd.tasks.example.org/tasks/"
                    "s-20261124-090500-0123abcd/enter?ticket=…",
                    "seconds": ENTRY_SECONDS,
                }
            ]
        }
    )

    url: str = Field(description="Good once.")
    seconds: int = Field(description="How long it is good.")


@router.get("/tasks", dependencies=[USERS])
def list_tasks(session: SessionDep, caller: CallerDep, page: PageDep) -> Listing[Task]:
    """The caller's tasks, the newest first; an admin sees those of all."""
    statement = select(Submission).where(col(Submission.kind).in_(KINDS))
    if caller.role != "admin":
        statement = statement.where(col(Submission.user) == caller.name)
    rows, following = page.rows(
        session,
        statement,
        [col(Submission.submitted), col(Submission.id)],
        [str, str],
        descending=True,
    )
    return Listing(items=[_shown(each) for each in rows], next=following)


@router.post("/tasks", status_code=201, dependencies=[WRITES])
def submit_task(new: NewTask, session: SessionDep, caller: CallerDep, at: NowDep) -> Task:
    """Put a task in the queue."""
    task = read_task(new.config, where="config")
    check_task(
        session,
        caller,
        new.project,
        slots=SLOTS,
        pool=new.pool,
        priority=new.priority,
        at=at,
    )
    row = submissions.submit(
        session,
        kind=task.kind,
        name=new.name,
        project=new.project,
        pool=new.pool,
        priority=new.priority,
        config=new.config,
        slots=SLOTS,
        by=ChangedBy(user=caller.name, at=format_time(datetime.now(UTC)), token=caller.token),
    )
    shown = _shown(row)
    session.commit()
    return shown


@router.get("/tasks/{task}", dependencies=[USERS])
def get_task(task: _TaskId, session: SessionDep, caller: CallerDep) -> Task:
    """One task, for whom it is and for admins."""
    return _shown(_own(session, caller, task))


@router.post("/tasks/{task}:open", dependencies=[WRITES])
def open_task(
    task: _TaskId, request: Request, session: SessionDep, caller: CallerDep, audit: AuditDep
) -> OpenedTask:
    """An address that shows the task, good once and for a minute.

    It sets a cookie of the task's own host, and nothing of it is good for this service.
    """
    row = _own(session, caller, task)
    origins: TaskOrigins | None = request.app.state.settings.tasks
    if origins is None:
        raise Problem(
            409,
            "Refused",
            "This service shows no tasks",
            "Its operator starts it with govray serve --tasks-port",
        )
    if row.kind not in _SHOWN:
        raise Problem(409, "Refused", f"A task of the kind {row.kind} shows nothing")
    if row.state in submissions.ENDED:
        raise Problem(
            410, "Gone", f"This task has ended: {row.state.value.lower()}", "Submit it again"
        )
    secret = ticket(session, row.id, caller, at=datetime.now(UTC))
    audit.write(session, "task opened", row.id, {"kind": row.kind, "owner": row.user})
    session.commit()
    return OpenedTask(
        url=f"{origins.of(task)}/tasks/{task}/enter?ticket={secret}", seconds=ENTRY_SECONDS
    )


def _own(session: Session, caller: Caller, task: str) -> Submission:
    """The task, if the caller may see it.

    Raises:
        Problem: 404.
    """
    row = session.get(Submission, task)
    if (
        row is not None
        and row.kind in KINDS
        and (caller.role == "admin" or row.user == caller.name)
    ):
        return row
    raise not_found("task", task, "Look at /v1/tasks", hidden=row is not None)


def _shown(row: Submission) -> Task:
    return Task.model_validate(
        {**row.model_dump(include=set(Task.model_fields)), "shown": row.kind in _SHOWN}
    )
