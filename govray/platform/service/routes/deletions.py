"""Deleting runs in two steps, marked now and gone after a time. Their tombstones, and projects.

For who submits in the run's project: their own runs, and an admin's all. A project is for its
admins, and is deleted once its runs are gone. A mark removes nothing, and `:restore` takes it back.
What may not go is refused, with what needs it. The process that indexes the storage removes what is
due.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage

from fastapi import APIRouter
from pydantic import Field
from sqlmodel import col, func, select

from govray.governance.formats.document import Count
from govray.platform.service.acting.project_rules import (
    PlaceName,
    demand,
    find_project,
    settings_of,
)
from govray.platform.service.http.answer import Answer
from govray.platform.service.http.problems import not_allowed, refused
from govray.platform.service.http.statuses import refusing
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import Listing, PageDep, filtered
from govray.platform.service.identity.rights import in_projects, may_change
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.experiments import KnownExperiment
from govray.platform.service.routes.runs import Filter, KnownRun
from govray.platform.service.visible.lookup import Finder
from govray.platform.store import deletions, tables
from govray.platform.store.database import begin_writing
from govray.platform.store.project_settings import ProjectSettings
from govray.platform.store.states import CheckpointState
from govray.platform.wire.answers import Deletion, Deletions
from govray.storage.place import place
from govray.train.run_folder import removal

router = APIRouter(tags=["experiments"], dependencies=[needs("view")])


class Space(Answer):
    """What a project's runs take on storage, as the index knows it."""

    checkpoints: Count = Field(description="Bytes of all checkpoints that are there.")
    marked: Count = Field(description="Of these, bytes that go with runs that are marked.")
    free: Count | None = Field(
        description="Bytes free on the storage of this service; null: it has none on a disk."
    )


_deletions = Finder(
    "deletion",
    tables.DeletionRow,
    "run",
    lambda caller: in_projects(caller, tables.DeletionRow.project),
    "See the list of deletions",
)


@router.get("/deletions")
def listing(
    visit: VisitDep,
    page: PageDep,
    project: Filter = None,
    experiment: Filter = None,
) -> Listing[Deletion]:
    """Runs that are marked, and the tombstones of those that are gone. The latest mark first."""
    d = tables.DeletionRow
    statement = filtered(
        select(d).where(in_projects(visit.caller, d.project)),
        *((d.project, project), (d.experiment, experiment)),
    )
    order = (d.at, d.run)
    return page.listing(visit.session, statement, order, Deletion.model_validate, descending=True)


@router.get("/deletions/{run}")
def deletion(visit: VisitDep, run: str) -> Deletion:
    """What is known of a run that is marked, or is gone."""
    return Deletion.model_validate(_deletions(visit.session, visit.caller, run))


@router.get("/projects/{project}/space")
def space(visit: VisitDep, project: PlaceName) -> Space:
    """What the checkpoints of a project take, what is about to go, and what is free."""
    name = find_project(visit.session, visit.caller, project).name
    c, t, e, d = tables.CheckpointRow, tables.RunRow, tables.ExperimentRow, tables.DeletionRow
    held = (
        select(func.coalesce(func.sum(col(c.bytes)), 0))
        .join(t, col(t.id) == col(c.run))
        .join(e, col(e.id) == col(t.experiment))
        .where(col(e.project) == name, col(c.state) == CheckpointState.COMPLETED)
    )
    marked = select(d.run).where(col(d.gone).is_(None), col(d.restored).is_(None))
    free = None
    if isinstance(storage := visit.request.app.state.settings.storage, Path):
        with suppress(OSError):
            free = disk_usage(storage).free
    return Space(
        checkpoints=int(visit.session.execute(held).scalar_one()),
        marked=int(visit.session.execute(held.where(col(t.id).in_(marked))).scalar_one()),
        free=free,
    )


@router.delete("/runs/{run}", dependencies=[needs("submit")], responses=refusing(409))
def delete_run(visit: VisitDep, known: KnownRun) -> Deletion:
    """Mark a run to be deleted. Nothing is removed before `goneAfter`."""
    return _mark(visit, [known])[0]


@router.post("/runs/{run}:restore", dependencies=[needs("submit")], responses=refusing(409))
def restore_run(visit: VisitDep, known: KnownRun) -> Deletion:
    """Take a mark back, as long as removal has not begun. No retention marks the run again."""
    return _restore(visit, [known.id], known.experiment)[0]


@router.delete("/experiments/{experiment}", dependencies=[needs("submit")], responses=refusing(409))
def delete_experiment(visit: VisitDep, known: KnownExperiment) -> Deletions:
    """Mark all runs of an experiment, or none: one that may not go keeps the others."""
    t = tables.RunRow
    of_experiment = select(t).where(t.experiment == known.id).order_by(col(t.id))
    runs = [each for each in visit.session.exec(of_experiment) if each.replay_of is None]
    if not runs:
        raise refused("No run of this experiment is known", "Index its storage first")
    d = tables.DeletionRow
    gone = set(
        visit.session.exec(select(d.run).where(d.experiment == known.id, col(d.gone).is_not(None)))
    )
    return Deletions(items=_mark(visit, [each for each in runs if each.id not in gone] or runs))


@router.delete("/projects/{project}", responses=refusing(400, 409))
def delete_project(visit: VisitDep, project: PlaceName) -> Deletions:
    """Mark all runs of a project, or none: one that may not go keeps the others. It is archived.

    Asked again, once its runs are gone, it is deleted: no run is in the answer. Its name stays
    taken.
    """
    row = demand(visit.session, visit.caller, "manage", project)
    begin_writing(visit.session)
    visit.session.refresh(row)
    runs = deletions.project_runs(visit.session, row)
    marked = _put_marks(visit, runs, settings_of(row).delete_after_days)
    deletions.end_project(visit.session, row, delete=not runs, by=visit.by)
    visit.session.commit()
    return Deletions(items=marked)


@router.post(
    "/experiments/{experiment}:restore", dependencies=[needs("submit")], responses=refusing(409)
)
def restore_experiment(visit: VisitDep, known: KnownExperiment) -> Deletions:
    """Take back the marks of all runs of an experiment whose removal has not begun."""
    d = tables.DeletionRow
    marked = select(d.run).where(
        d.experiment == known.id, col(d.begun).is_(None), col(d.restored).is_(None)
    )
    runs = list(visit.session.exec(marked.order_by(col(d.run))))
    if not runs:
        raise refused("No run of this experiment is marked, or the removal of all began")
    return Deletions(items=_restore(visit, runs, known.id))


def _mark(visit: Visit, runs: Sequence[tables.RunRow]) -> list[Deletion]:
    days = _demand(visit, runs[0].experiment).delete_after_days
    begin_writing(visit.session)
    marked = _put_marks(visit, runs, days)
    visit.session.commit()
    return marked


def _put_marks(visit: Visit, runs: Sequence[tables.RunRow], days: int) -> list[Deletion]:
    session = visit.session
    attestor = visit.request.app.state.register is not None
    marked = []
    for each in runs:
        session.refresh(each)
        storage = place(session.get_one(tables.ExperimentRow, each.experiment).storage)
        known = session.get(tables.DeletionRow, each.id)
        new = known is None or known.restored is not None
        if new:
            deletions.check_may_go(session, each, attestor=attestor)
            removal.check_may_go(storage, each.folder)
        row = deletions.mark(
            session,
            each,
            days=days,
            attested=new and removal.has_model(storage, each.folder),
            by=visit.by,
        )
        marked.append(Deletion.model_validate(row))
    return marked


def _restore(visit: Visit, runs: Sequence[str], experiment: str) -> list[Deletion]:
    _demand(visit, experiment)
    begin_writing(visit.session)
    found = []
    for each in runs:
        row = deletions.restore(visit.session, each, by=visit.by)
        found.append(Deletion.model_validate(row))
    visit.session.commit()
    return found


def _demand(visit: Visit, experiment: str) -> ProjectSettings:
    """The settings of the experiment's project, if the caller may delete its runs."""
    row = visit.session.get_one(tables.ExperimentRow, experiment)
    if not may_delete(visit, experiment):
        raise not_allowed(
            f"{row.user} started it, and only {row.user} or an admin deletes its runs",
        )
    project = visit.session.get(tables.ProjectRow, row.project)
    return settings_of(project) if project is not None else ProjectSettings()


def mark_of(visit: Visit, experiment: str) -> tables.DeletionRow | None:
    """The mark of the run that goes last, if all runs of an experiment are marked."""
    t, d = tables.RunRow, tables.DeletionRow
    marked = select(d).where(d.experiment == experiment, col(d.restored).is_(None))
    own = select(t.id).where(t.experiment == experiment, col(t.replay_of).is_(None))
    left = own.where(col(t.id).not_in(marked.with_only_columns(col(d.run))))
    if visit.session.exec(left.limit(1)).first() is not None:
        return None
    order = (col(d.gone).is_not(None), col(d.gone_after).desc(), col(d.run))
    return visit.session.exec(marked.order_by(*order).limit(1)).first()


def may_delete(visit: Visit, experiment: str) -> bool:
    """Whether the caller may delete runs of an experiment, and restore them."""
    row = visit.session.get_one(tables.ExperimentRow, experiment)
    project = visit.session.get(tables.ProjectRow, row.project)
    return may_change(visit.caller, project, row.user)
