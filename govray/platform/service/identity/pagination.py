"""Cursors: where a listing goes on. Opaque to callers, validated when they come back.

A page begins at a position in the listing's order, found by the index and not by counting. So it
costs the same at any depth, and rows that come or go shift nothing. A cursor holds that position
and a digest of the query and the caller that it belongs to; another query or caller refuses it. It
is not secret and grants nothing: what it leads to is filtered like a first page.
"""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel, Field
from sqlalchemy import Float, Integer, tuple_
from sqlmodel import Session, SQLModel, col

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.platform.service.http.problems import Problem
from govray.platform.service.http.statuses import refuses
from govray.platform.service.identity.access import CallerDep

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
MAX_CURSOR = 2048

Item = TypeVar("Item")
Answered = TypeVar("Answered", bound=BaseModel)


class Listing(BaseModel, Generic[Item]):
    """One page. ``next`` is the cursor of the page that follows, absent from the last."""

    items: list[Item]
    next: str | None = Field(
        default=None, description="Give it as `cursor`, with the same filters, for the next page."
    )


class Page:
    def __init__(self, limit: int, cursor: str | None, binding: str) -> None:
        self.limit = limit
        self._cursor = cursor
        self._binding = binding

    def after(self, kinds: Sequence[type]) -> tuple[Any, ...] | None:
        """The position to go on from, one value for each of ``kinds``, which are ``str`` or
        ``int``; None: from the start."""
        if self._cursor is None:
            return None
        try:
            data = base64.b64decode(self._cursor, altchars=b"-_", validate=True)
            value = canonical_json.parse(data, limit=MAX_CURSOR, where="cursor")
        except (ValueError, Malformed):
            raise foreign() from None
        if not isinstance(value, dict) or set(value) != {"after", "of"}:
            raise foreign()
        position = value["after"]
        if (
            value["of"] != self._binding
            or not isinstance(position, list)
            or [type(each) for each in position] != list(kinds)
        ):
            raise foreign()
        return tuple(position)

    def cursor(self, position: Sequence[str | int]) -> str:
        data = canonical_json.encode({"after": list(position), "of": self._binding})
        return base64.urlsafe_b64encode(data).decode()

    def rows(
        self,
        session: Session,
        statement: Any,
        columns: Sequence[Any],
        *,
        descending: bool = False,
    ) -> tuple[Sequence[Any], str | None]:
        """The rows of this page, in the order of ``columns``, and the next page's cursor.

        Args:
            columns: Of the statement, which has them by their names. They must tell any two rows
                apart, and an index should have them. Each is of numbers or of texts.
        """
        position = self._reached(columns)
        key = tuple_(*columns)
        if position is not None:
            statement = statement.where(key < position if descending else key > position)
        order = [each.desc() if descending else each.asc() for each in columns]
        # One too many: it says whether a page follows.
        result = session.execute(statement.order_by(*order).limit(self.limit + 1))
        found = (result.scalars() if len(statement.column_descriptions) == 1 else result).all()
        if len(found) <= self.limit:
            return found, None
        kept = found[: self.limit]
        last = [getattr(kept[-1], column.key) for column in columns]
        # As text: canonical JSON does not tell 2.0 from 2.
        return kept, self.cursor([repr(each) if type(each) is float else each for each in last])

    def _reached(self, columns: Sequence[Any]) -> tuple[Any, ...] | None:
        given = self.after([int if isinstance(c.type, Integer) else str for c in columns])
        try:
            return given and tuple(
                float(each) if isinstance(c.type, Float) else each
                for c, each in zip(columns, given, strict=True)
            )
        except ValueError:
            raise foreign() from None

    def part(
        self, found: Sequence[Item], key: Callable[[Item], str]
    ) -> tuple[Sequence[Item], str | None]:
        """Of what is there already, sorted by a text: this page's, and the next page's cursor."""
        after = self.after([str])
        begin = 0 if after is None else bisect_right(found, after[0], key=key)
        kept = found[begin : begin + self.limit]
        return kept, self.cursor([key(kept[-1])]) if found[begin + self.limit :] else None

    def listing(
        self,
        session: Session,
        statement: Any,
        columns: Sequence[Any],
        item: Callable[[Any], Item],
        *,
        descending: bool = False,
    ) -> Listing[Item]:
        """The answer of this page: as `rows`, each made an ``item``."""
        rows, following = self.rows(session, statement, columns, descending=descending)
        return Listing(items=[item(each) for each in rows], next=following)


def filtered(statement: Any, *filters: tuple[Any, Any]) -> Any:
    """The statement with those filters that are given: of a column, and its value or None."""
    for column, value in filters:
        if value is not None:
            statement = statement.where(col(column) == value)
    return statement


def sorting(*names: str) -> Any:
    """The query parameter for the order of a listing: one of these, the largest first with -."""
    return Query(
        pattern=f"^-?({'|'.join(names)})$",
        description=f"By {', '.join(names)}; with - before it the largest first.",
    )


def columns_of(table: type[SQLModel], answer: type[BaseModel]) -> list[Any]:
    """The columns of a table that an answer has: a listing reads no envelopes and no files."""
    return [getattr(table, name) for name in answer.model_fields if name in table.model_fields]


def answers(answer: type[Answered]) -> Callable[[Any], Answered]:
    """What makes an ``answer`` of a row with its `columns_of`: half the work of reading its
    attributes one by one."""
    return lambda row: answer.model_validate(dict(row._mapping))


def foreign() -> Problem:
    """400: the cursor is another listing's, or was changed."""
    return Problem(
        400,
        "Not a cursor of this listing",
        "query.cursor: it belongs to another query or caller, or was changed",
        "Begin without a cursor",
    )


@refuses(400)
async def _page(
    request: Request,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Rows of one page.")] = (
        DEFAULT_LIMIT
    ),
    cursor: Annotated[
        str | None, Query(max_length=MAX_CURSOR, description="`next` of the page before.")
    ] = None,
) -> Page:
    filters = sorted(
        [key, value]
        for key, value in request.query_params.multi_items()
        if key not in ("limit", "cursor")
    )
    bound = [request.url.path, filters, caller.name, caller.role, caller.supplier or ""]
    binding = hashlib.sha256(canonical_json.encode(bound)).hexdigest()[:32]
    return Page(limit, cursor, binding)


PageDep = Annotated[Page, Depends(_page)]
"""The `Page` that ``limit`` and ``cursor`` of the query ask for."""
