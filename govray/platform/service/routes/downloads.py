"""Whole files of a run: its numbers as CSV, its decisions as JSON, its configuration as YAML.

What a paged listing has, in one answer, for spreadsheets and scripts. The same callers read it. A
file that was cut would look whole. So a run with more than a file holds is refused, with the way to
read it in parts. The CSV is read from the store piece by piece: a slow reader holds no connection.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import Engine, select, tuple_
from sqlmodel import Session, col

from govray.platform.service.http.problems import Problem
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.routes.experiments import Decision, KnownExperiment, KnownTrial
from govray.platform.service.visible.visibility import RUN_READERS
from govray.platform.store import tables

router = APIRouter(tags=["experiments"], dependencies=[RUN_READERS])

MOST_NUMBERS = 2_000_000
MOST_DECISIONS = 10_000
ROWS_AT_ONCE = 5_000

HEADER = ("group", "name", "step", "attempt", "value")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")

Group = Annotated[
    str | None, Query(max_length=200, description="Only this group.", examples=["training"])
]
Name = Annotated[
    str | None, Query(max_length=200, description="Only this name.", examples=["loss"])
]


def _file(media_type: str, description: str, example: str) -> dict[int | str, dict[str, Any]]:
    # No schema: a text of another format is not what JSON Schema describes.
    content = {media_type: {"example": example}}
    return {200: {"description": description, "content": content}}


@router.get(
    "/trials/{trial}/metrics.csv",
    response_class=Response,
    responses=_file(
        "text/csv",
        "One number a line, by group, name and step.",
        "group,name,step,attempt,value\r\ntraining,loss,100,0,2.9\r\n",
    ),
)
def metrics_csv(
    visit: VisitDep, known: KnownTrial, group: Group = None, name: Name = None
) -> StreamingResponse:
    """All numbers of a trial that count, as CSV. What a restart superseded is not in it.

    A group or name that a spreadsheet would take for a formula has an apostrophe before it.
    """
    statement = _numbers(known.id, group, name)
    if visit.session.execute(statement.offset(MOST_NUMBERS).limit(1)).first() is not None:
        raise Problem(
            422,
            "Too much for one file",
            f"The run has more than {MOST_NUMBERS:,} such numbers",
            "Name one group and name in the query, or read /v1/trials/{trial}/metrics page by page",
        )
    return StreamingResponse(
        _lines(visit.request.app.state.engine, statement),
        media_type="text/csv; charset=utf-8",
        headers=_attached(f"{known.id}-metrics.csv"),
    )


def _numbers(trial: str, group: str | None, name: str | None) -> Any:
    row = tables.Metric
    statement = select(
        col(row.group), col(row.name), col(row.step), col(row.attempt), col(row.value)
    ).where(col(row.trial) == trial, col(row.archived).is_(False))
    if group is not None:
        statement = statement.where(col(row.group) == group)
    return statement if name is None else statement.where(col(row.name) == name)


def _lines(engine: Engine, statement: Any) -> Iterator[str]:
    """The file in pieces, each of a query of its own."""
    row = tables.Metric
    order = [col(row.group), col(row.name), col(row.step), col(row.attempt)]
    key = tuple_(*order)
    position: tuple[Any, ...] | None = None
    yield _written([HEADER])
    while True:
        some = statement if position is None else statement.where(key > position)
        with Session(engine) as session:
            rows = session.execute(some.order_by(*order).limit(ROWS_AT_ONCE)).all()
        if not rows:
            return
        position = tuple(rows[-1])[:4]
        yield _written(
            [
                (_text(each[0]), _text(each[1]), each[2], each[3], repr(float(each[4])))
                for each in rows
            ]
        )


def _written(rows: Sequence[Sequence[object]]) -> str:
    """RFC 4180."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _text(name: str) -> str:
    """A name that no spreadsheet computes: names are whatever a training loop reports."""
    return f"'{name}" if name.startswith(_FORMULA) else name


@router.get("/trials/{trial}/decisions.json")
def decisions_json(known: KnownTrial, session: SessionDep, response: Response) -> list[Decision]:
    """All decisions of a trial, each with its reason and evidence, by source and number."""
    row = tables.Decision
    rows = (
        session.execute(
            select(row)
            .where(col(row.trial) == known.id)
            .order_by(col(row.source), col(row.number))
            .limit(MOST_DECISIONS + 1)
        )
        .scalars()
        .all()
    )
    if len(rows) > MOST_DECISIONS:
        raise Problem(
            422,
            "Too much for one file",
            f"The run has more than {MOST_DECISIONS:,} decisions",
            "Read /v1/trials/{trial}/decisions page by page",
        )
    response.headers.update(_attached(f"{known.id}-decisions.json"))
    return [Decision.model_validate(each) for each in rows]


@router.get(
    "/experiments/{experiment}/config.yaml",
    response_class=Response,
    responses=_file(
        "application/yaml", "The experiment's configuration.", "name: gpt\nmax_steps: 300\n"
    ),
)
def config_yaml(known: KnownExperiment) -> Response:
    """What an experiment asked for, as YAML. It is what the run recorded, defaults included."""
    text = yaml.safe_dump(known.config, sort_keys=False, allow_unicode=True)
    return Response(
        text, media_type="application/yaml", headers=_attached(f"{known.id}-config.yaml")
    )


def _attached(name: str) -> dict[str, str]:
    """That a browser saves the answer under ``name``, of which plain characters stay."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[-120:]
    return {"Content-Disposition": f'attachment; filename="{plain}"'}
