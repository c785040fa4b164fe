"""Requests that come twice: by their ``Idempotency-Key`` the second makes nothing, and is answered
as the first was.

1. A request claims its key, which is its caller's own and of one address, for `HELD`.
2. The key is marked as done in the transaction that writes what the request makes. So both are
   written, or neither: a process that dies in between makes nothing twice.
3. `Repeats`, a layer around the routes, keeps the answer for `LASTS`, or gives the key back if
   nothing was written.

The store has neither the key nor the body, but digests over both, which confirm no guess of a body
to who lacks the key. An answer with a secret is not kept: its repetition is told that it was done.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Response
from sqlalchemy import Engine, delete, event, update
from sqlalchemy.engine import CursorResult
from sqlmodel import Session, col, select
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from govray.governance.formats.document import format_time
from govray.platform.service.http.problems import Problem, not_valid, refused
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.store.database import begin_writing
from govray.platform.store.tables import Repeat

HELD = timedelta(minutes=1)
LASTS = timedelta(days=1)
MOST = 1000
"""Keys of one caller; above that its oldest end."""

_Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern="^[!-~]{1,128}$",
        description="Of your choice, new for each thing that you make. For a day the same request "
        "with the same key makes no second one. It is answered as the first was, with "
        "`Idempotency-Replayed: true`; an answer with a secret is not kept, and a 409 in its "
        "place.",
    ),
]


class Answered(Exception):
    """The request came before. ``response`` is what it was answered."""

    def __init__(self, response: Response) -> None:
        self.response = response


@dataclass(frozen=True)
class HeldKey:
    """A key that a request of this process holds."""

    engine: Engine
    key: str
    holder: str
    keep: bool
    clock: Callable[[], datetime]

    def mark_done(self, session: Session) -> None:
        """Mark it in the transaction that is about to be committed. Raises 409: another has it."""
        if not self._set(session, done=True, expires=format_time(self.clock() + LASTS)):
            raise refused(
                "It took so long that its Idempotency-Key is another request's by now",
                "Nothing was written. Look for what the other one made",
            )

    def end(self, status: int, headers: Headers, body: bytes) -> None:
        """Keep what was answered; give the key back if nothing was written."""
        with Session(self.engine) as session:
            if self.keep and status < 400:
                kept = {name: headers[name] for name in _KEPT if name in headers}
                self._set(session, status=status, headers=kept, answer=body.decode())
            ended = delete(Repeat).where(*self._mine, col(Repeat.done).is_(False))
            session.connection().execute(ended)
            session.commit()

    @property
    def _mine(self) -> tuple[Any, ...]:
        return col(Repeat.key) == self.key, col(Repeat.holder) == self.holder

    def _set(self, session: Session, **changes: Any) -> bool:
        statement = update(Repeat).where(*self._mine).values(**changes)
        result: CursorResult[Any] = session.connection().execute(statement)
        return result.rowcount == 1


_KEPT = ("content-type", "location")


def claim(visit: Visit, key: str | None, body: bytes, *, keep: bool = True) -> None:
    """Claim ``key`` for this request, before it writes. Without a key nothing is done.

    Raises:
        Answered: It was answered before.
        Problem: 409, the first is not answered yet, or its answer was not kept. 422, the key came
            with another body.
    """
    if key is None:
        return
    if visit.caller.public:
        raise not_valid("header.idempotency-key", "It counts for who has a token")
    request, clock = visit.request, visit.request.app.state.clock
    place = [visit.caller.name, request.method, request.url.path, key]
    row = Repeat(
        key=hashlib.sha256(json.dumps(place).encode()).hexdigest(),
        body=hashlib.sha256(json.dumps([key, request.url.query]).encode() + body).hexdigest(),
        holder=secrets.token_hex(16),
        user=visit.caller.name,
        expires=format_time(clock() + HELD),
    )
    engine = request.app.state.engine
    held = HeldKey(engine, row.key, row.holder, keep, clock)
    with Session(engine) as session:
        begin_writing(session)  # of two with one key the second finds the first
        session.connection().execute(delete(Repeat).where(col(Repeat.expires) <= visit.at))
        first = session.get(Repeat, row.key)
        if first is not None:
            _answer(first, row.body)
        mine = select(col(Repeat.key)).where(col(Repeat.user) == row.user)
        over = session.exec(mine.order_by(col(Repeat.expires).desc()).offset(MOST - 1)).all()
        session.connection().execute(delete(Repeat).where(col(Repeat.key).in_(over)))
        session.add(row)
        session.commit()
    event.listen(visit.session, "before_commit", held.mark_done)
    request.state.claims.append(held)


def _answer(first: Repeat, body: str) -> None:
    """Tell a second request of the first. Raises `Answered` or `Problem`."""
    if first.body != body:
        raise not_valid(
            "header.idempotency-key",
            "The key was used for another request",
            "Send a new key with a new request",
        )
    if first.status is not None:
        told = {**(first.headers or {}), "Idempotency-Replayed": "true"}
        raise Answered(Response(first.answer, first.status, told))
    if first.done:
        raise refused(
            "It was done before, and its answer was not kept",
            "Look for what it made; if its secret is lost, remove that and send a new key",
        )
    raise Problem(
        409,
        "Under way",
        "The first request with this Idempotency-Key is not answered yet",
        "Send it again in a second",
        headers={"Retry-After": "1"},
    )


class Repeats:
    """The layer that ends what requests claimed, before their answers go out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        claims: list[HeldKey] = []
        if scope["type"] == "http":
            scope.setdefault("state", {})["claims"] = claims
        kept: list[Message] = []

        async def sending(message: Message) -> None:
            if not claims:
                await send(message)
                return
            kept.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                start, *parts = kept
                body = b"".join(part.get("body", b"") for part in parts)
                headers = Headers(raw=start["headers"])
                await run_in_threadpool(claims.pop().end, start["status"], headers, body)
                for each in kept:
                    await send(each)

        try:
            await self.app(scope, receive, sending)
        finally:
            if claims:  # an error that nobody foresaw
                await run_in_threadpool(claims.pop().end, 500, Headers(), b"")


def install(app: FastAPI) -> None:
    """Let `claim` answer for the routes of ``app``."""
    app.add_middleware(Repeats)

    async def answered(_request: Request, error: Exception) -> Response:
        assert isinstance(error, Answered)
        return error.response

    app.add_exception_handler(Answered, answered)


async def _once(visit: VisitDep, key: _Key = None) -> Visit:
    await run_in_threadpool(claim, visit, key, await visit.request.body())
    return visit


async def _once_with_secret(visit: VisitDep, key: _Key = None) -> Visit:
    await run_in_threadpool(claim, visit, key, await visit.request.body(), keep=False)
    return visit


OnceDep = Annotated[Visit, Depends(_once)]
"""The `Visit` of a request that makes something, once for each key."""
OnceWithSecretDep = Annotated[Visit, Depends(_once_with_secret)]
"""The same where the answer shows a secret: it is not kept."""
