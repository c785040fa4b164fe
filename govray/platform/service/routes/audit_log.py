"""The audit log, for those who watch over the others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from sqlmodel import col, select

from govray.governance.formats.document import Count
from govray.platform.service.http.answer import Answer
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import Listing, PageDep, filtered
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.routes.runs import Before, Since, started_between
from govray.platform.service.visible.visible_runs import audit_entries
from govray.platform.store.tables import AuditEntry

router = APIRouter(tags=["service"])

Filter = Annotated[str | None, Query(max_length=200)]


class Entry(Answer):
    """An act: by a user, on a subject."""

    number: Count
    at: str
    user: str
    token: str | None = None
    action: str
    subject: str
    outcome: Literal["done", "refused"]
    detail: dict[str, Any]


@router.get("/audit", dependencies=[needs("audit")])
def audit(
    visit: VisitDep,
    page: PageDep,
    user: Filter = None,
    subject: Filter = None,
    action: Filter = None,
    outcome: Literal["done", "refused"] | None = None,
    since: Since = None,
    before: Before = None,
) -> Listing[Entry]:
    """The audit log, the latest first. For admins and auditors.

    Those of a workspace or project read what was done to it, and to what was submitted to it.
    """
    row = AuditEntry
    statement = filtered(
        select(row).where(audit_entries(visit.caller)),
        *((row.user, user), (row.subject, subject), (row.action, action), (row.outcome, outcome)),
    )
    statement = started_between(statement, row.at, since, before)
    order = (col(row.number),)
    return page.listing(visit.session, statement, order, Entry.model_validate, descending=True)
