"""Whether whoever reads a stream may still do so, asked again while it lasts.

A stream is opened once and read for minutes. Meanwhile a token is revoked, somebody signs out, or a
role is taken away. So each stream looks again every `RECHECK_SECONDS`, by the rules of a request.
It ends then without a last event. A reader that comes back gets the answer of a new request.
"""

from __future__ import annotations

import time

from fastapi import Request
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool

from govray.platform.service.http.problems import Problem
from govray.platform.service.identity.access import AccessGate
from govray.platform.service.identity.caller import Caller
from govray.platform.service.visible.readers import reads_runs
from govray.platform.service.visible.visible_runs import find_trial

RECHECK_SECONDS = 10.0


class StreamReader:
    """Who reads a stream of one trial, allowed when it was opened."""

    def __init__(self, request: Request, trial: str) -> None:
        self._request = request
        self._trial = trial
        self._due = time.monotonic() + RECHECK_SECONDS

    async def may_go_on(self) -> bool:
        """Whether the stream may; asks the store when it is time to."""
        if time.monotonic() < self._due:
            return True
        self._due = time.monotonic() + RECHECK_SECONDS
        gate: AccessGate = self._request.app.state.gate
        try:
            caller = await gate.again(self._request)
            return caller is not None and await run_in_threadpool(self._reads, caller)
        except Problem:
            return False

    def _reads(self, caller: Caller) -> bool:
        engine: Engine = self._request.app.state.engine
        with Session(engine) as session:
            find_trial(session, caller, self._trial)
        return reads_runs(caller) and caller.has("read")
