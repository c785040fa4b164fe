"""One session of the store per request.

It is opened without asking the store anything and closed as soon as the handler has returned,
before the response goes out: a slow reader holds no connection. So a handler returns values, not
rows that would load more later. It commits what it writes; what it leaves uncommitted is undone.

``def`` and ``async def`` handlers may both use it; the latter only for a query that takes less
time than a change of threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request
from sqlmodel import Session


async def _session(request: Request) -> AsyncIterator[Session]:
    session = Session(request.app.state.engine, expire_on_commit=False)
    try:
        yield session
    finally:
        if not session.in_transaction():
            session.close()
        elif request.app.state.engine.dialect.name == "sqlite":
            session.close()  # gives a connection back, which waits for nothing
        else:
            # A rollback is a round trip. It never queues behind handlers that wait for the
            # connection that it gives back: its thread is not one of theirs.
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(session.close, limiter=CapacityLimiter(1))


SessionDep = Annotated[Session, Depends(_session, scope="function")]
"""A `sqlmodel.Session` for this request."""
