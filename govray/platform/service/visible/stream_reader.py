"""Whether whoever reads a stream may still do so, asked again while it lasts.

A stream is opened once and read for minutes. Meanwhile a token is revoked, somebody signs out, or a
role is taken away. So each stream looks again every `RECHECK_SECONDS`, by the rules of a request.
It ends then without a last event. A reader that comes back gets the answer of a new request.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from fastapi import Request
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool

from govray.platform.service.http.problems import Problem
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.rights import somewhere
from govray.platform.service.visible.visible_runs import find_run

RECHECK_SECONDS = 10.0


async def turns(request: Request, run: str, seconds: float) -> AsyncIterator[None]:
    """A turn for each look that a stream of a run may take, for so long at most. None follows
    where the reader is gone or may no longer read, or where all streams are to end."""
    until, due = time.monotonic() + seconds, time.monotonic() + RECHECK_SECONDS
    while time.monotonic() < until:
        if request.app.state.streams.stopping or await request.is_disconnected():
            return
        if time.monotonic() >= due:
            due = time.monotonic() + RECHECK_SECONDS
            if not await _still_reads(request, run):
                return
        yield


async def _still_reads(request: Request, run: str) -> bool:
    def reads(caller: Caller) -> bool:
        with Session(request.app.state.engine) as session:
            find_run(session, caller, run)
        return somewhere(caller, "view") and caller.has("read")

    try:
        caller = await request.app.state.gate.again(request)
        return caller is not None and await run_in_threadpool(reads, caller)
    except Problem:
        return False
