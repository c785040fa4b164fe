"""What a caller may not read does not exist for it: the same 404, by the same query."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import Path
from sqlalchemy import ColumnElement, select
from sqlmodel import Session, SQLModel

from govray.platform.service.http.problems import Problem, not_found
from govray.platform.service.identity.caller import Caller

DigestPath = Annotated[
    str,
    Path(
        pattern="^(sha256:)?[0-9a-f]{64}$",
        description="A digest: `sha256:` and 64 hex digits, or these alone.",
        examples=["sha256:" + "7c" * 32],
    ),
]

SEE_MODELS = "See the list of models"


def full_digest(text: str) -> str:
    """The digest as it stands in the store."""
    return "sha256:" + text.removeprefix("sha256:")


def absent(caller: Caller, what: str, name: str, do: str | None = None) -> Problem:
    """404 for what the caller may not read, whether or not it is there.

    In both cases the audit log records a supplier's attempt, and that of who has roles in parts of
    the organisation only. So attempts to read others' data are noticed, and take as long as
    attempts to read what does not exist.
    """
    return not_found(what, name, do, hidden=caller.role in ("supplier", "member"))


Found = TypeVar("Found", bound=SQLModel)


def find_one(
    session: Session,
    caller: Caller,
    table: type[Found],
    named: tuple[str, str, str | None],
    *conditions: ColumnElement[bool],
) -> Found:
    """The one row that fulfils ``conditions``; ``named`` is what `absent` says of it."""
    rows = session.execute(select(table).where(*conditions))
    found: Found | None = rows.scalar_one_or_none()
    if found is None:
        raise absent(caller, *named)
    return found
