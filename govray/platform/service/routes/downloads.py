"""The numbers of a run as CSV: what a paged listing has, in one answer, for spreadsheets.

The same callers read it. A file that was cut would look whole. So a run with more than a file holds
is refused, with the way to read it in parts. It is read from the store piece by piece: a slow
reader holds no connection.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import Engine, tuple_
from sqlmodel import Session

from govray.platform.service.http.problems import Problem
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.routes.runs import KnownRun, numbers

router = APIRouter(tags=["experiments"], dependencies=[needs("view")])

CSV = "text/csv; charset=utf-8"
MOST_NUMBERS = 2_000_000
ROWS_AT_ONCE = 5_000

HEADER = ("group", "name", "step", "attempt", "value")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")

Group = Annotated[
    str | None, Query(max_length=200, description="Only this group.", examples=["training"])
]
Name = Annotated[
    str | None, Query(max_length=200, description="Only this name.", examples=["loss"])
]


@router.get(
    "/runs/{run}/metrics.csv",
    response_class=Response,
    # No schema: a text of another format is not what JSON Schema describes.
    responses={
        200: {
            "description": "One number a line, by group, name and step.",
            "content": {
                "text/csv": {
                    "example": "group,name,step,attempt,value\r\ntraining,loss,100,0,2.9\r\n"
                }
            },
        }
    },
)
def metrics_csv(
    visit: VisitDep, known: KnownRun, group: Group = None, name: Name = None
) -> StreamingResponse:
    """All numbers of a run that count, as CSV. What a restart superseded is not in it.

    A group or name that a spreadsheet would take for a formula has an apostrophe before it.
    """
    statement, order = numbers(visit.session, known.id, group, name, archived=False)
    if visit.session.execute(statement.offset(MOST_NUMBERS).limit(1)).first() is not None:
        raise Problem(
            422,
            "Too much for one file",
            f"The run has more than {MOST_NUMBERS:,} such numbers",
            "Name one group and name in the query, or read /v1/runs/{run}/metrics page by page",
        )
    return StreamingResponse(
        _lines(visit.request.app.state.engine, statement, order),
        media_type=CSV,
        headers=attached(f"{known.id}-metrics.csv"),
    )


def _lines(engine: Engine, statement: Any, order: Sequence[Any]) -> Iterator[str]:
    """The file in pieces, each of a query of its own."""
    key = tuple_(*order)
    position: tuple[Any, ...] | None = None
    yield written([HEADER])
    while True:
        some = statement if position is None else statement.where(key > position)
        with Session(engine) as session:
            rows = session.execute(some.order_by(*order).limit(ROWS_AT_ONCE)).all()
        if not rows:
            return
        position = tuple(getattr(rows[-1], column.key) for column in order)
        yield written(
            [
                (text(each.group), text(each.name), each.step, each.attempt, repr(each.value))
                for each in rows
            ]
        )


def written(rows: Sequence[Sequence[object]]) -> str:
    """RFC 4180."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def text(name: str) -> str:
    """A name that no spreadsheet computes: names are whatever a training loop reports."""
    return f"'{name}" if name.startswith(_FORMULA) else name


def attached(name: str) -> dict[str, str]:
    """That a browser saves the answer under ``name``, of which plain characters stay."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[-120:]
    return {"Content-Disposition": f'attachment; filename="{plain}"'}
