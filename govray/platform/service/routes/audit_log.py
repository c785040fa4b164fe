"""The audit log, for those who watch over the others, and who used how much."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from sqlmodel import col, select

from govray.governance.formats.document import Count, Timestamp
from govray.platform.service.http.answer import Answer
from govray.platform.service.identity.pagination import Listing, PageDep, filtered
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.visible.reach import in_projects
from govray.platform.service.visible.readers import AUDITORS, RUN_READERS
from govray.platform.service.visible.visible_runs import audit_entries
from govray.platform.store import tables
from govray.platform.store.tables import AuditEntry
from govray.platform.store.usage import By
from govray.platform.store.usage import usage as used

router = APIRouter(tags=["service"])

Filter = Annotated[str | None, Query(max_length=200)]


class Entry(Answer):
    """Who did what to what."""

    number: Count
    at: str
    user: str
    token: str | None = None
    action: str
    subject: str
    outcome: Literal["done", "refused"]
    detail: dict[str, Any]


@router.get("/audit", dependencies=[AUDITORS])
def audit(
    visit: VisitDep,
    page: PageDep,
    user: Filter = None,
    subject: Filter = None,
    action: Filter = None,
    outcome: Literal["done", "refused"] | None = None,
) -> Listing[Entry]:
    """The audit log, the latest first. For admins and auditors.

    Those of a workspace or project read what was done to it, and to what was submitted to it.
    """
    row = AuditEntry
    statement = filtered(
        select(row).where(audit_entries(visit.caller)),
        *((row.user, user), (row.subject, subject), (row.action, action), (row.outcome, outcome)),
    )
    order = (col(row.number),)
    return page.listing(visit.session, statement, order, Entry.model_validate, descending=True)


class Used(Answer):
    """What one project, user or workspace used."""

    name: str
    submissions: int = Field(description="Entries of the queue that were made.")
    runs: int
    worker_hours: float
    accelerator_hours: float = Field(description="Hours of what Ray gave a worker as a GPU.")
    attested: int = Field(description="Attestations in the index of these runs.")


class Usage(Answer):
    """Usage by project, user or workspace, by name."""

    by: By
    items: list[Used]


@router.get("/usage", dependencies=[RUN_READERS])
def usage(
    visit: VisitDep,
    by: By = "project",
    since: Annotated[
        Timestamp | None,
        Query(description="Runs that started, and submissions made, then or later."),
    ] = None,
) -> Usage:
    """Accelerator-hours, submissions and attested artifacts, of what you may read.

    A project that nobody made is in no workspace, and counts for the name ``-`` there.
    """
    rows = used(
        visit.session,
        at=visit.at,
        by=by,
        since=since,
        experiments=in_projects(visit.caller, tables.Experiment.project),
        submissions=in_projects(visit.caller, tables.Submission.project),
    )
    return Usage(by=by, items=[Used.model_validate(each) for each in rows])
