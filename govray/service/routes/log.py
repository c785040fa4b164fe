"""The audit log, for those who watch over the others, and who used how much."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import ConfigDict
from sqlmodel import col, select

from govray.governance.document import Count
from govray.service.access import require
from govray.service.answers import Answer
from govray.service.pagination import Listing, PageDep
from govray.service.session import SessionDep
from govray.store.tables import AuditEntry

router = APIRouter(tags=["service"])

Filter = Annotated[str | None, Query(max_length=200)]


class Entry(Answer):
    """Who did what to what."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "number": "17",
                    "at": "2026-11-21T09:00:00Z",
                    "user": "ada",
                    "token": "0123456789ab",
                    "action": "GET /v1/corpora/{corpus}",
                    "subject": "acme-notes",
                    "outcome": "done",
                    "detail": {},
                }
            ]
        }
    )

    number: Count
    at: str
    user: str
    token: str | None
    action: str
    subject: str
    outcome: Literal["done", "refused"]
    detail: dict[str, Any]


@router.get("/audit", dependencies=[Depends(require("admin", "auditor"))])
def audit(
    session: SessionDep,
    page: PageDep,
    user: Filter = None,
    subject: Filter = None,
    action: Filter = None,
    outcome: Literal["done", "refused"] | None = None,
) -> Listing[Entry]:
    """The audit log, the latest first. For admins and auditors."""
    row = AuditEntry
    statement = select(row)
    for column, value in (
        (row.user, user),
        (row.subject, subject),
        (row.action, action),
        (row.outcome, outcome),
    ):
        if value is not None:
            statement = statement.where(column == value)
    number = col(row.number)
    found = session.exec(page.keyset(statement, (number,), (int,), descending=True)).all()
    kept, cursor = page.cut(found, lambda each: (each.number or 0,))
    return Listing(items=[Entry.model_validate(each) for each in kept], next=cursor)
