"""A run's metrics as they come: server-sent events.

Each event is one step of one attempt: ``{"step", "attempt", "metrics": {group: {name: value}}}``.
Its id is the position, so a reader that comes back with Last-Event-ID misses nothing; a step that
has grown since is sent again, whole. The last event is ``end`` with the run's state.

The store is polled; a stream holds no connection and no thread between polls. Streams are bounded
in number and in time. One whose reader may no longer read ends
(`govray.platform.service.visible.stream_reader`). What arrives for a step after a later one was
sent is not in the stream; the listing has it.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import Engine, tuple_
from sqlmodel import Session, col, select
from starlette.concurrency import run_in_threadpool

from govray.platform.service.http.problems import Problem
from govray.platform.service.identity.access import Caller, CallerDep, needs
from govray.platform.service.routes.runs import KnownRun
from govray.platform.service.visible.stream_reader import turns
from govray.platform.store.queue_entries import goes_on
from govray.platform.store.tables import MetricRow, RunRow

MOST_OF_ONE = 12
"""Live streams that one caller may have open at the same time, with whichever tokens."""
POLL_SECONDS = 1.0
MAX_SECONDS = 600.0
MAX_ROWS = 5_000
"""Rows of one poll; the rest come with the next."""

_POSITION = re.compile(r"(\d{1,9})\.(\d{1,15})\.(\d{1,6})")

router = APIRouter(tags=["experiments"], dependencies=[needs("view")])

Position = tuple[int, int, int]
"""Attempt, step, and how many numbers of that step were sent."""


class Streams:
    """Counts answers of one application that last; ``stopping`` ends live ones at their next poll.
    ``what``: such as ``live streams``."""

    def __init__(self, most: int, what: str) -> None:
        self.most = most
        self.what = what
        self.open = 0
        self.of = Counter[str]()
        """Those of each caller."""
        self.stopping = False

    @contextmanager
    def place(self, caller: Caller) -> Iterator[None]:
        """Hold one of the places. Raises 429: the caller has `MOST_OF_ONE`; 503: all are taken."""
        if self.of[caller.name] >= MOST_OF_ONE:
            raise self._none_left(429, f"{MOST_OF_ONE} {self.what} of {caller.name} are open")
        if self.open >= self.most:
            raise self._none_left(503, f"{self.most} {self.what} are open")
        self.open += 1
        self.of[caller.name] += 1
        try:
            yield
        finally:
            self.open -= 1
            self.of -= Counter({caller.name: 1})

    def _none_left(self, status: int, detail: str) -> Problem:
        title, do = f"Too many {self.what.rpartition(' ')[2]}", "Close one, or try again later"
        return Problem(status, title, detail, do, headers={"Retry-After": "10"})


async def slot(request: Request, caller: CallerDep) -> AsyncIterator[None]:
    """Hold a place among the live streams, for as long as a request lasts. Raises as `Streams`."""
    streams: Streams = request.app.state.streams
    with streams.place(caller):
        request.app.state.measures.streams(streams.open)
        try:
            yield
        finally:
            request.app.state.measures.streams(streams.open - 1)


@router.get(
    "/runs/{run}/metrics/stream",
    response_class=EventSourceResponse,
    dependencies=[Depends(slot)],
)
async def stream(
    request: Request,
    known: KnownRun,
    last_event_id: Annotated[
        str | None, Header(max_length=64, description="Go on behind this event.")
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """A run's metrics, live, as server-sent events, until it ends."""
    engine: Engine = request.app.state.engine
    position = read_position(last_event_id)
    async for _ in turns(request, known.id, MAX_SECONDS):
        # The state first: what was written before the run ended is then surely read.
        ended, rows = await run_in_threadpool(_poll, engine, known.id, position)
        for event, reached in events(rows, position):
            yield event
            position = reached
        if len(rows) >= MAX_ROWS:
            continue
        if ended is not None:
            yield ServerSentEvent(event="end", data={"state": ended})
            return
        await asyncio.sleep(POLL_SECONDS)


def read_position(text: str | None) -> Position:
    """The position of an event's id; from the start if it belongs to another stream."""
    form = _POSITION.fullmatch(text or "")
    return (int(form[1]), int(form[2]), int(form[3])) if form else (0, 0, 0)


def _poll(engine: Engine, run: str, position: Position) -> tuple[str | None, Sequence[MetricRow]]:
    """The state of a run that goes on no more, and what follows from a position on."""
    with Session(engine) as session:
        known = session.get(RunRow, run)
        ended = None if known and goes_on(session, known) else known.state if known else "DELETED"
        rows = session.exec(
            select(MetricRow)
            .where(MetricRow.run == run, tuple_(MetricRow.attempt, MetricRow.step) >= position[:2])
            .order_by(
                col(MetricRow.attempt),
                col(MetricRow.step),
                col(MetricRow.group),
                col(MetricRow.name),
            )
            .limit(MAX_ROWS)
        ).all()
    return ended, rows


def events(
    rows: Sequence[MetricRow], position: Position
) -> Sequence[tuple[ServerSentEvent, Position]]:
    """The events of ``rows``, in order of attempt and step, behind ``position``."""
    steps: dict[tuple[int, int], list[MetricRow]] = {}
    for row in rows:
        steps.setdefault((row.attempt, row.step), []).append(row)
    if len(rows) >= MAX_ROWS and len(steps) > 1:
        steps.popitem()  # it may be cut
    found = []
    for (attempt, step), numbers in steps.items():
        reached = (attempt, step, len(numbers))
        if reached <= position:
            continue
        groups: dict[str, dict[str, float | None]] = {}
        for row in numbers:
            value = row.value if math.isfinite(row.value) else None
            groups.setdefault(row.group, {})[row.name] = value
        data: dict[str, Any] = {"step": step, "attempt": attempt, "metrics": groups}
        id_ = ".".join(map(str, reached))
        found.append((ServerSentEvent(event="metrics", data=data, id=id_), reached))
    return found
