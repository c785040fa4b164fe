"""From a request on a task's host to the task's program, or to why not.

1. The ``Host`` is the task's own (`origin`), or this is no request for it.
2. What changes something, and every WebSocket, comes from the task's own pages: ``Origin`` says so.
   A browser always sends it then; who sends none is no browser, and holds no cookie by accident.
3. The cookie is that of a session for this task that goes on (`tickets`). Without: 401, whether
   there is such a task or not. Tokens of the service count for nothing here.
4. The queue says that the task runs, and the task says where. It ended: 410. Not yet, or not now
   since it gave way and comes back: 503.
5. The address is that of the node on which the queue says that it runs, or lies in a network that
   the operator named.

What was found is remembered for `REMEMBERED` seconds. A guess takes from its address's bucket.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from govray.errors import GovrayError
from govray.platform.service.http.limits import Buckets, address_key
from govray.platform.service.http.origin import TaskOrigins
from govray.platform.service.http.problems import Problem
from govray.platform.service.identity.tokens import digest
from govray.platform.service.tasks import tickets
from govray.platform.service.tasks.headers import COOKIE, cookies
from govray.platform.store.queue_entries import ENDED
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from govray.platform.tasks.endpoint import Ended, Endpoint, read_endpoint

REMEMBERED = 2.0
MAX_REMEMBERED = 1000
MAX_SECRET = 128

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class TaskGate:
    """Lets people through to the tasks of one storage."""

    def __init__(
        self,
        engine: Engine,
        origins: TaskOrigins,
        buckets: Buckets,
        clock: Callable[[], datetime],
    ) -> None:
        self.origins = origins
        self._engine = engine
        self._buckets = buckets
        self._clock = clock
        self._remembered: OrderedDict[tuple[str, str], tuple[Endpoint, float]] = OrderedDict()

    def own_host(self, connection: HTTPConnection, task: str) -> None:
        """Refuse a request at another name, or one that a page of another origin sent."""
        if connection.headers.get("host", "") != self.origins.host(task):
            raise Problem(
                421, "Another host", "This task has another address", "Open it from its list"
            )
        origin = connection.headers.get("origin")
        safe = connection.scope["type"] == "http" and connection.scope["method"] in _SAFE
        if not safe and origin is not None and origin != self.origins.of(task):
            raise Problem(403, "Another site", "A page of another site sent this request")

    async def enter(self, connection: HTTPConnection, task: str, secret: str) -> str:
        """The secret of a new session, for a ticket."""
        self.own_host(connection, task)
        guesses = self._guess(connection)
        made = None
        if 0 < len(secret) <= MAX_SECRET:
            made = await run_in_threadpool(self._enter, task, secret)
        if made is None:
            raise _stranger()
        self._buckets.give_back(guesses)
        return made

    async def endpoint(self, connection: HTTPConnection, task: str) -> Endpoint:
        """Where the task answers that this request is for."""
        self.own_host(connection, task)
        sent = [value for name, value in cookies(connection.scope["headers"]) if name == COOKIE]
        # Two cookies of one name: somebody put one beside ours.
        secret = sent[0] if len(sent) == 1 and len(sent[0]) <= MAX_SECRET else ""
        key = task, digest(secret)
        seen = self._remembered.get(key)
        if seen is not None and time.monotonic() < seen[1]:
            return seen[0]
        if not secret:
            raise _stranger()
        guesses = self._guess(connection)
        if not await run_in_threadpool(self._admitted, task, secret):
            self._remembered.pop(key, None)
            raise _stranger()
        self._buckets.give_back(guesses)
        found = await run_in_threadpool(self._find, task)
        self._remembered[key] = found, time.monotonic() + REMEMBERED
        self._remembered.move_to_end(key)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return found

    def _guess(self, connection: HTTPConnection) -> str:
        host = connection.client.host if connection.client else "unknown"
        guesses = f"guesses of address {address_key(host)}"
        self._buckets.take(guesses)
        return guesses

    def _enter(self, task: str, secret: str) -> str | None:
        with Session(self._engine) as session:
            made = tickets.enter(session, task, secret, at=self._clock())
            session.commit()
            return made

    def _admitted(self, task: str, secret: str) -> bool:
        with Session(self._engine) as session:
            return tickets.admitted(session, task, secret, at=self._clock())

    def _find(self, task: str) -> Endpoint:
        with Session(self._engine) as session:
            return answering(session.get(QueueEntry, task), self.origins)


def answering(row: QueueEntry | None, origins: TaskOrigins) -> Endpoint:
    """Where a task answers, if the proxy connects to it. Raises `Problem`: why not."""
    state = row.state if row else ExperimentState.ERROR
    if row is None or state in ENDED:
        raise _gone(f"This task has ended: {state.value.lower()}")
    try:
        found = read_endpoint(origins.storage, row.id)
    except (GovrayError, OSError):
        # The words would say what lies in the storage.
        raise Problem(
            502, "No answer", "What the task says of its address cannot be read"
        ) from None
    if _of_earlier_start(row, found):
        found = None
    if isinstance(found, Ended):
        raise _gone(f"This task has ended: {found.why}")
    if found is None or (row.node is None and not origins.networks):
        raise Problem(
            503,
            "Not yet",
            f"This task is {state.value.lower()} and does not answer yet",
            "Look again in a few seconds",
            headers={"Retry-After": "3"},
        )
    if not origins.reaches(found.ip, row.node):
        raise Problem(
            502,
            "No answer",
            f"The task answers at {found.ip}, where this service does not connect to"
            + (f"; the queue says that it runs on {row.node}" if row.node else ""),
            "Its operator names networks with govray serve --tasks-network",
        )
    return found


def _of_earlier_start(row: QueueEntry, found: Endpoint | Ended | None) -> bool:
    """Whether a job wrote it that another follows: the task gave way, or its node was lost."""
    if row.state is ExperimentState.QUEUED:
        return True
    return isinstance(found, Ended) and row.started is not None and found.at < row.started


def _stranger() -> Problem:
    return Problem(
        401,
        "Not authenticated",
        "This needs a session for this task",
        "Open it from the list of tasks, or by POST /v1/tasks/ID:open",
    )


def _gone(detail: str) -> Problem:
    return Problem(410, "Gone", detail, "Submit it again; what it kept lies in the storage")
