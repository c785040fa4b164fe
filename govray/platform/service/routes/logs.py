"""What a run's drivers and workers printed, from the run's folder. For staff.

A part begins at a byte and says where the next one begins, so a log is read like a file, at any
size. A search reads so many bytes and then says where it goes on. A log that is followed comes as
server-sent events: the folder is looked at every second, by nobody between two looks.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field
from sqlalchemy import Engine
from sqlmodel import Session, select
from starlette.concurrency import run_in_threadpool

from govray.platform.service.http.answer import Answer, Decimal
from govray.platform.service.http.problems import Problem, not_found
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import needs
from govray.platform.service.routes.downloads import attached
from govray.platform.service.routes.live_metrics import MAX_SECONDS, slot
from govray.platform.service.routes.runs import KnownRun
from govray.platform.service.visible.stream_reader import turns
from govray.platform.store import run_logs
from govray.platform.store.queue_entries import goes_on
from govray.platform.store.tables import ExperimentRow, RunRow

POLL_SECONDS = 1.0
DEFAULT_LINES = 200
MOST_LINES = 2000
LONGEST_SEARCH = 200
LARGEST = (1 << 53) - 1

router = APIRouter(tags=["logs"], dependencies=[needs("view")])

LogName = Annotated[
    str, Path(pattern=run_logs.NAME, description="Of the log.", examples=["rank-0-1.log"])
]


class NamedLog(Answer):
    """A log by its name: `driver-N`, or `rank-R-A` of rank R in attempt A."""

    name: str
    bytes: Decimal


class Logs(Answer):
    """The logs of a run: drivers first, then by attempt and rank."""

    items: list[NamedLog]


class NumberedLine(Answer):
    """A line, and the byte that it begins at."""

    at: Decimal
    text: str


class LogPage(Answer):
    """Lines of a log that follow one another, or that were searched for."""

    name: str
    size: Decimal = Field(description="Bytes that the log has.")
    begin: Decimal = Field(description="The byte that this part begins at.")
    next: Decimal = Field(description="Give it as `from`, for the next part.")
    lines: list[NumberedLine]


def folder_of(session: Session, run: RunRow) -> str:
    """The run's folder, where it was when it was indexed."""
    storage = session.get_one(ExperimentRow, run.experiment).storage
    return f"{storage.rstrip('/')}/{run.folder}"


def part_of(
    session: Session,
    run: RunRow,
    name: str,
    *,
    search: str = "",
    start: int | None = None,
    lines: int = DEFAULT_LINES,
) -> run_logs.LogPart:
    found = run_logs.read(folder_of(session, run), name, start=start, most=lines, search=search)
    if found is None:
        raise not_found("log", name, "See the list of the run's logs")
    return found


@router.get("/runs/{run}/logs")
def listing(known: KnownRun, session: SessionDep) -> Logs:
    """The logs that a run's folder keeps; none where the folder is out of reach. For staff."""
    found = run_logs.listed(folder_of(session, known))
    return Logs(items=[NamedLog(name=each.name, bytes=str(each.size)) for each in found])


@router.get("/runs/{run}/logs/{name}")
def read(
    known: KnownRun,
    name: LogName,
    session: SessionDep,
    search: Annotated[
        str,
        Query(max_length=LONGEST_SEARCH, description="Only lines with this text, in any case."),
    ] = "",
    start: Annotated[
        int | None,
        Query(
            alias="from",
            ge=0,
            le=LARGEST,
            description="Begin at this byte. Without it: the last lines, or of a search the first.",
        ),
    ] = None,
    lines: Annotated[int, Query(ge=1, le=MOST_LINES, description="Lines at most.")] = (
        DEFAULT_LINES
    ),
) -> LogPage:
    """Lines of a log. `next` is where the next part begins. For staff."""
    part = part_of(session, known, name, search=search, start=start, lines=lines)
    lines_ = [NumberedLine.model_validate(each) for each in part.lines]
    return LogPage(name=name, size=part.size, begin=part.begin, next=part.next, lines=lines_)


@router.get(
    "/runs/{run}/logs/{name}/text",
    response_class=Response,
    responses={
        200: {
            "description": "The whole log, as it is now.",
            "content": {"text/plain": {"example": "step 0\n"}},
        }
    },
)
def text(known: KnownRun, name: LogName, session: SessionDep) -> StreamingResponse:
    """A whole log as a file. For staff."""
    found = run_logs.whole(folder_of(session, known), name)
    if found is None:
        raise not_found("log", name, "See the list of the run's logs")
    headers = attached(f"{known.id}-{name}")
    return StreamingResponse(found, media_type="text/plain; charset=utf-8", headers=headers)


@router.get(
    "/runs/{run}/logs/{name}/stream",
    response_class=EventSourceResponse,
    dependencies=[Depends(slot)],
)
async def stream(
    request: Request,
    known: KnownRun,
    name: LogName,
    start: Annotated[
        int, Query(alias="from", ge=0, le=LARGEST, description="Begin at this byte.")
    ] = 0,
    last_event_id: Annotated[
        str | None, Header(max_length=64, description="Go on behind this event.")
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """A log as it grows, as server-sent events of lines, until the run ends. For staff."""
    engine: Engine = request.app.state.engine
    known_id = re.fullmatch("[0-9]{1,15}", last_event_id or "")
    at = int(known_id[0]) if known_id else start
    async for _ in turns(request, known.id, MAX_SECONDS):
        try:
            going, part = await run_in_threadpool(_poll, engine, known.id, name, at)
        except Problem:
            going, part = False, None
        if part is not None and part.lines:
            at = part.next
            yield ServerSentEvent(
                event="lines", data=[each.text for each in part.lines], id=str(part.next)
            )
            continue
        if not going:
            yield ServerSentEvent(event="end", data={})
            return
        await asyncio.sleep(POLL_SECONDS)


def _poll(engine: Engine, run: str, name: str, at: int) -> tuple[bool, run_logs.LogPart]:
    """Whether the run goes on, and what follows from a byte on."""
    with Session(engine) as session:
        # The state first: what was written before the run ended is then surely read.
        row = session.exec(select(RunRow).where(RunRow.id == run)).one()
        return goes_on(session, row), part_of(session, row, name, start=at, lines=MOST_LINES)
