"""One session of the store per request.

It is opened without a query and closed when the handler has returned, before the response is sent.
So a slow reader holds no connection. So a handler returns values, not rows that would load more
later. It commits what it writes; what it leaves uncommitted is undone.

``def`` handlers run in threads and use it freely. The few that are asked most are ``async def`` and
ask by `asked`: one query by its key takes less time than a change of threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, TypeVar

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


T = TypeVar("T")


async def asked(session: Session, query: Callable[[], T]) -> T:
    """What ``query`` gives, which asks ``session`` for one row by its key.

    In place on SQLite, a file of this machine whose readers wait for nobody. A server may take its
    time, so it is asked in a thread.
    """
    if session.get_bind().dialect.name == "sqlite":
        return query()
    return await to_thread.run_sync(query)


SessionDep = Annotated[Session, Depends(_session, scope="function")]
