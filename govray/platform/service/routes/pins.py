"""Commits of a run that stay whatever its rules say: pinned and unpinned, in the run's folder.

For who submits in the run's project: their own runs, and an admin's all. What another run starts
from is pinned by that, and nobody unpins it here. A run that commits to a URL has no pins.
"""

from __future__ import annotations

from pathlib import Path as Folder
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field
from sqlmodel import Session, col, select

from govray.platform.service.http.answer import Answer
from govray.platform.service.http.problems import Problem, not_allowed, not_found, refused
from govray.platform.service.http.session import SessionDep
from govray.platform.service.http.statuses import refusing
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.rights import may_change
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.logs import folder_of
from govray.platform.service.routes.runs import KnownRun
from govray.platform.store import tables
from govray.platform.store.states import CheckpointState
from govray.platform.wire.answers import CheckpointPin, CheckpointPins
from govray.storage.place import place
from govray.train.checkpoint import pins

router = APIRouter(tags=["experiments"], dependencies=[needs("view")])

WAIT_SECONDS = 5.0
"""How long a request waits for a run that deletes commits meanwhile."""

Step = Annotated[
    int, Path(ge=0, le=999_999_999, description="The checkpoint's step.", examples=[300])
]


class NewPin(Answer):
    """Why a checkpoint is to stay."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=pins.LONGEST_REASON)] = Field(
        default="", description="A line for who reads it later."
    )


@router.get("/runs/{run}/pins", responses=refusing(409))
def listing(known: KnownRun, session: SessionDep) -> CheckpointPins:
    """Which checkpoints of a run stay whatever its rules say, and why."""
    try:
        held = pins.read_pins(_folder(session, known))
    except OSError:
        raise _out_of_reach() from None
    steps = {pins.folder_name(step): step for step in _steps(session, known)}
    found = [CheckpointPin(step=steps[name], reason=held[name]) for name in held if name in steps]
    return CheckpointPins(items=sorted(found, key=lambda each: each.step))


@router.post(
    "/runs/{run}/checkpoints/{step}:pin", dependencies=[needs("submit")], responses=refusing(409)
)
def pin(visit: VisitDep, known: KnownRun, step: Step, new: NewPin) -> CheckpointPin:
    """Keep a checkpoint, whatever the run's rules say. Once it is pinned, again changes nothing."""
    folder = _mine(visit, known, step)
    name = pins.folder_name(step)
    try:
        kept = pins.pin(
            folder, name, who=visit.caller.name, reason=new.reason.strip(), seconds=WAIT_SECONDS
        )
    except OSError:
        raise _out_of_reach() from None
    visit.audit.write(
        visit.session, "checkpoint pinned", known.id, {"step": str(step), "reason": kept}
    )
    visit.session.commit()
    return CheckpointPin(step=step, reason=kept)


@router.post(
    "/runs/{run}/checkpoints/{step}:unpin", dependencies=[needs("submit")], responses=refusing(409)
)
def unpin(visit: VisitDep, known: KnownRun, step: Step) -> CheckpointPin:
    """Let the run's rules decide about a checkpoint again. It goes with the next commit, if so."""
    folder = _mine(visit, known, step)
    try:
        pins.unpin(folder, pins.folder_name(step), seconds=WAIT_SECONDS)
    except OSError:
        raise _out_of_reach() from None
    visit.audit.write(visit.session, "checkpoint unpinned", known.id, {"step": str(step)})
    visit.session.commit()
    return CheckpointPin(step=step, reason=None)


def _mine(visit: Visit, run: tables.RunRow, step: int) -> Folder:
    """The run's folder, if the caller may change what stays there and the checkpoint is known."""
    experiment = visit.session.get_one(tables.ExperimentRow, run.experiment)
    project = visit.session.get(tables.ProjectRow, experiment.project)
    if not may_change(visit.caller, project, experiment.user):
        raise not_allowed(
            f"{experiment.user} started it, and only {experiment.user} or an admin pins its "
            "checkpoints",
        )
    if step not in _steps(visit.session, run, step):
        raise not_found("checkpoint", str(step), f"See /v1/runs/{run.id}/checkpoints")
    return _folder(visit.session, run)


def _steps(session: Session, run: tables.RunRow, step: int | None = None) -> list[int]:
    c = tables.CheckpointRow
    there = select(c.step).where(col(c.run) == run.id, col(c.state) == CheckpointState.COMPLETED)
    return list(session.exec(there if step is None else there.where(col(c.step) == step)))


def _folder(session: Session, run: tables.RunRow) -> Folder:
    try:
        found = place(folder_of(session, run))
    except ValueError:
        raise _out_of_reach() from None
    if not isinstance(found, Folder):
        raise refused("The run lies at a URL, where nothing is pinned")
    if found.is_symlink() or not found.is_dir():
        raise _out_of_reach()
    return found


def _out_of_reach() -> Problem:
    return refused(
        "The run's folder is out of this service's reach, or not to be written",
        "On a machine that has it, say govray checkpoint pin",
    )
