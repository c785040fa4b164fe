"""What a caller may read of experiments, runs, submissions, and what was done to them."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, or_, select, true
from sqlmodel import Session, col

from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.roles import places
from govray.platform.service.visible.lookup import Finder
from govray.platform.service.visible.reach import in_projects, of_runs
from govray.platform.service.visible.readers import watches
from govray.platform.store import tables
from govray.platform.store.run_owners import RUN_KINDS


def experiments(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Experiment`: those that the caller may read."""
    return in_projects(caller, tables.Experiment.project)


def runs(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Run`: those of `experiments`."""
    return of_runs(caller, tables.Run.id, "view")


def submissions(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Submission`: those that the caller may read."""
    return in_projects(caller, tables.Submission.project)


def reads_file(session: Session, caller: Caller, row: tables.Submission) -> bool:
    """Whether the caller may read the file of a submission that it may read.

    An experiment's file is in its run's record, for all who read that. A task's file has the words
    of a command: for who submitted it, and who may submit in its project.
    """
    if row.kind in RUN_KINDS or row.user == caller.name:
        return True
    s = tables.Submission
    found = select(col(s.id)).where(
        col(s.id) == row.id, in_projects(caller, s.project, "task-file")
    )
    return session.execute(found).first() is not None


def audit_entries(caller: Caller) -> ColumnElement[bool]:
    """Condition on `AuditEntry`: what was done to places of the caller, and to what lies in them.
    Entries of reads name addresses, not places: they are for auditors of the organisation."""
    if watches(caller):
        return true()
    p, s, w = tables.Project, tables.Submission, tables.Workspace
    found = places(caller, "audit")
    spaces = col(w.name).in_(sorted(found["workspace"])) if not found["organisation"] else true()
    subject = col(tables.AuditEntry.subject)
    projects = in_projects(caller, p.name, "audit")
    return and_(
        col(tables.AuditEntry.outcome) == "done",
        or_(
            subject.in_(select(col(s.id)).where(in_projects(caller, s.project, "audit"))),
            subject.in_(select("project " + col(p.name)).where(projects)),
            subject.in_(select("workspace " + col(w.name)).where(spaces)),
        ),
    )


_SEE = "See the list of {}s".format
find_experiment = Finder("experiment", tables.Experiment, "id", experiments, _SEE("experiment"))
find_run = Finder("run", tables.Run, "id", runs, _SEE("run"))
find_submission = Finder("submission", tables.Submission, "id", submissions, _SEE("submission"))
