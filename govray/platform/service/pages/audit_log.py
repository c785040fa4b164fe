"""The page of the audit log: who did what, as far as the reader may see it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlmodel import col

from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.pages.rendering import render
from govray.platform.service.visible.visibility import AUDITORS, audit_entries
from govray.platform.store.tables import AuditEntry

Filter = Annotated[str, Query(max_length=200)]
_NUMBER: Any = AuditEntry.number

router = APIRouter(dependencies=[AUDITORS])


@router.get("/audit")
def listing(
    visit: VisitDep, page: PageDep, user: Filter = "", subject: Filter = "", action: Filter = ""
) -> HTMLResponse:
    row = AuditEntry
    statement = select(row).where(audit_entries(visit.caller))
    given = {"user": user.strip(), "subject": subject.strip(), "action": action.strip()}
    for name, value in given.items():
        if value:
            statement = statement.where(col(getattr(row, name)) == value)
    rows, after = page.rows(visit.session, statement, [_NUMBER], [int], descending=True)
    return render(visit, "audit.html", entries=rows, after=after, given=given)
