"""What a caller may not read does not exist for it: the same 404, by the same query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

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


@dataclass(frozen=True)
class Finder(Generic[Found]):
    """Finds one thing of a kind for a caller, by its name. Raises 404, as `absent` says it.

    Attributes:
        key: The column of the name. A digest may be given without its ``sha256:``.
        readable: Condition on ``table``: what the caller may read.
        do: Where the caller sees which there are.
    """

    what: str
    table: type[Found]
    key: str
    readable: Callable[[Caller], ColumnElement[bool]]
    do: str | None = None

    def __call__(self, session: Session, caller: Caller, name: str) -> Found:
        value = full_digest(name) if self.key == "digest" else name
        named = getattr(self.table, self.key) == value
        rows = session.execute(select(self.table).where(named, self.readable(caller)))
        found: Found | None = rows.scalar_one_or_none()
        if found is None:
            raise absent(caller, self.what, name, self.do)
        return found
