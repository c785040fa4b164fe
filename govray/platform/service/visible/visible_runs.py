"""What a caller may read of experiments, runs, entries of the queue, and what was done to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, true
from sqlalchemy.orm import aliased
from sqlmodel import Session, col

from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.rights import (
    everywhere,
    in_projects,
    of_runs,
    projects,
    workspaces,
)
from govray.platform.service.visible.lookup import absent
from govray.platform.store import tables
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.states import ExperimentState


def experiments(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Experiment`: those that the caller may read."""
    return in_projects(caller, tables.ExperimentRow.project)


def in_a_project(project: Any) -> ColumnElement[bool]:
    """Condition on a column with projects' names, for lists: not one that is deleted. Its
    runs are still found by name, so what names them leads somewhere."""
    p = tables.ProjectRow
    return col(project).not_in(select(col(p.name)).where(col(p.deleted).is_not(None)))


def is_no_task() -> ColumnElement[bool]:
    """Condition on `Experiment`: its id is not that of a task, whose folder would be called so."""
    q = tables.QueueEntry
    return col(tables.ExperimentRow.id).not_in(
        select(col(q.id)).where(col(q.kind).not_in(RUN_KINDS))
    )


def runs(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Run`: those of `experiments`."""
    return of_runs(caller, tables.RunRow.id)


def told_once() -> ColumnElement[bool]:
    """Condition on `Decision`: the event of a gate or flag is left out where the signed ledger has
    the same."""
    d, signed = tables.DecisionRow, aliased(tables.DecisionRow)
    same = (
        col(getattr(signed, name)) == col(getattr(d, name))
        for name in ("run", "kind", "step", "corpus")
    )
    of_ledger = select(col(signed.run)).where(col(signed.source) == "ledger", *same)
    return or_(col(d.source) != "events", ~of_ledger.exists())


def entries(caller: Caller) -> ColumnElement[bool]:
    """Condition on `QueueEntry`: those that the caller may read."""
    return in_projects(caller, tables.QueueEntry.project)


def reads_file(session: Session, caller: Caller, row: tables.QueueEntry) -> bool:
    """Whether the caller may read the file of an entry that it may read.

    An experiment's file is in its run's record, for all who read that. A task's file has the words
    of a command: for who submitted it, and who may submit in its project.
    """
    if row.kind in RUN_KINDS or row.user == caller.name:
        return True
    s = tables.QueueEntry
    found = select(col(s.id)).where(
        col(s.id) == row.id, in_projects(caller, s.project, "task-file")
    )
    return session.execute(found).first() is not None


def audit_entries(caller: Caller) -> ColumnElement[bool]:
    """Condition on `AuditEntry`: what was done to places of the caller, and to what lies in them.
    Entries of reads name addresses, not places: they are for auditors of the organisation."""
    if everywhere(caller, "audit"):
        return true()
    p, w = tables.ProjectRow, tables.WorkspaceRow
    q, e, d = tables.QueueEntry, tables.ExperimentRow, tables.DeletionRow
    lying = ((q.id, q.project), (e.id, e.project), (d.run, d.project))
    subject = col(tables.AuditEntry.subject)
    return and_(
        col(tables.AuditEntry.outcome) == "done",
        or_(
            *(
                subject.in_(select(col(key)).where(in_projects(caller, project, "audit")))
                for key, project in lying
            ),
            subject.in_(select("project " + col(p.name)).where(projects(caller, "audit"))),
            subject.in_(select("workspace " + col(w.name)).where(workspaces(caller, "audit"))),
        ),
    )


_SEE = "See the list of {}s".format


@dataclass(frozen=True, kw_only=True)
class FoundExperiment:
    """An experiment by what is known of it: an entry of the queue, rows of the index, or both. What
    the queue says counts, for it knows before a run does."""

    id: str
    name: str
    project: str
    user: str
    state: ExperimentState
    entry: tables.QueueEntry | None
    indexed: tables.ExperimentRow | None


def find_experiment(session: Session, caller: Caller, name: str) -> FoundExperiment:
    """The experiment of this id. Raises 404, as `absent` says it."""
    found = _experiment(session, caller, name)
    if found is None:
        run = _run(session, caller, name)
        do = f"This is a run, of the experiment {run.experiment}" if run else _SEE("experiment")
        raise absent(caller, "experiment", name, do)
    return found


def find_run(session: Session, caller: Caller, name: str) -> tables.RunRow:
    """The run of this id. Raises 404, as `absent` says it."""
    found = _run(session, caller, name)
    if found is None:
        above = _experiment(session, caller, name)
        do = f"This is an experiment; see /v1/experiments/{name}" if above else _SEE("run")
        raise absent(caller, "run", name, do)
    return found


def _experiment(session: Session, caller: Caller, name: str) -> FoundExperiment | None:
    q, e = tables.QueueEntry, tables.ExperimentRow
    of_queue = select(q).where(col(q.id) == name, col(q.kind).in_(RUN_KINDS), entries(caller))
    of_index = select(e).where(col(e.id) == name, is_no_task(), experiments(caller))
    entry, indexed = session.scalar(of_queue), session.scalar(of_index)
    if (known := entry or indexed) is None:
        return None
    named = known.model_dump(include={"id", "name", "project", "user", "state"})
    return FoundExperiment(**named, entry=entry, indexed=indexed)


def _run(session: Session, caller: Caller, name: str) -> tables.RunRow | None:
    r = tables.RunRow
    return session.scalar(select(r).where(col(r.id) == name, runs(caller)))
