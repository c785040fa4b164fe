"""From a request to its `Caller`, and what a route demands of one.

1. With authentication off every caller is admin; ``hosts`` and the origin keep other sites out.
2. ``Authorization: Bearer`` is a token of the store (``govr_…``) or, where an identity provider is
   configured, one of its (``oidc.py``). Pages send the cookie of a session
   (``browser_sessions.py``). It counts for requests that change nothing. For others it counts only
   if the browser says the request is from our own page.
3. What is sent and not accepted is a 401: a bad token never falls back to being public.
4. Without a token the caller is public.
5. Each request takes from the bucket of its token, or of its address, before anything of it is
   read (`AccessGate.count`, which `limits` asks). A token that was not seen before takes from its
   address's bucket of guesses, which gets it back if it is accepted.

An accepted token or session is remembered for `REMEMBERED` seconds with its roles, which saves
queries for each request. A revocation, or a role that is taken away, takes effect within that time.
An expiry of the token or of a role does so at once. So does signing out, in the process that is
told of it.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool

from govray.governance.formats.document import format_time, parse_time
from govray.platform.service.http.limits import Buckets, address_key
from govray.platform.service.http.problems import Problem, not_allowed
from govray.platform.service.http.statuses import refuses
from govray.platform.service.identity import browser_sessions, session_cookie, sign_in_attempts
from govray.platform.service.identity.audit_log import entry
from govray.platform.service.identity.caller import LOCAL, PUBLIC, Caller, PlaceRole
from govray.platform.service.identity.rights import RIGHTS, Action, everywhere, somewhere
from govray.platform.service.identity.tokens import PREFIX, AcceptedToken, NotAccepted, accept
from govray.platform.store.role_bindings import of_caller

__all__ = ["Caller", "CallerDep", "needs"]

REMEMBERED = 2.0
OF_ONE = sign_in_attempts.MOST // 20
"""Sign-ins at a provider that one address may begin at once, and as many again while they last. So
it has at most a tenth of all places."""
MAX_REMEMBERED = 10_000
MAX_TOKEN = 8192

Verify = Callable[[str], AcceptedToken]
"""Checks a token that is not ours, now. Raises `NotAccepted`."""

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="`govray token new` makes one. OIDC bearer tokens too, where configured.",
)
_GUESSES = "guesses of "
_SAFE = frozenset({"GET", "HEAD"})
_PROBES = frozenset({"/v1/health", "/v1/live", "/v1/ready", "/live", "/ready"})
"""What supervisors ask: from a bucket of its own, which no other request of the address empties."""


@dataclass(frozen=True)
class Sent:
    """What a request carries: a token, or the secret of a session. Neither stands for the other."""

    text: str
    session: bool = False

    @property
    def key(self) -> bytes:
        """What it is remembered under."""
        return hashlib.sha256(f"{self.session} {self.text}".encode()).digest()


class AccessGate:
    """Finds the caller of a request, for one application."""

    def __init__(
        self,
        engine: Engine,
        buckets: Buckets,
        *,
        auth: bool,
        verify: Verify | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._engine = engine
        self._buckets = buckets
        self._auth = auth
        self._verify = verify
        self._clock = clock
        self._remembered: OrderedDict[bytes, tuple[AcceptedToken, datetime]] = OrderedDict()
        self._sign_ins = Buckets(
            OF_ONE / sign_in_attempts.LASTS.total_seconds(), OF_ONE, time.monotonic
        )

    def count(self, request: Request) -> None:
        """Take ``request`` from its caller's bucket, whatever it is for.

        Raises:
            Problem: 429, the bucket is empty.
        """
        if self._auth:
            self._pay(request, self._bucket(request))

    def _bucket(self, request: Request) -> str:
        address = _address(request)
        if request.url.path in _PROBES:
            return f"probes of {address}"
        try:
            sent = _sent(request)
        except NotAccepted:
            return address
        if sent is None:
            return address
        seen = self._remembered.get(sent.key)
        return _own(seen[0].caller) if seen else f"{_GUESSES}{address}"

    def _pay(self, request: Request, bucket: str) -> None:
        request.state.bucket = bucket
        self._buckets.take(bucket)

    async def caller(self, request: Request) -> Caller:
        """Who sent ``request``.

        Raises:
            Problem: 401, a token was sent and is not accepted; 403, a page of another site
                sent it; 429, its bucket is empty.
        """
        if not self._auth:
            _own_site(request)
        try:
            return await self._who(request)
        except NotAccepted as error:
            raise _unauthorized(str(error)) from None

    async def _who(self, request: Request) -> Caller:
        if not self._auth:
            return LOCAL
        sent = _sent(request)
        return (await self._accepted(sent, request)).caller if sent else PUBLIC

    async def again(self, request: Request) -> Caller | None:
        """Who sent ``request``, of an answer that goes on; None if what it carries has ended."""
        try:
            return await self._who(request)
        except NotAccepted:
            return None

    def begin_attempt(self, request: Request) -> None:
        """Take from the sign-ins that the address of ``request`` may begin at a provider.

        Raises:
            Problem: 429, it has begun `OF_ONE`, and they come back by and by.
        """
        self._sign_ins.take(_address(request))

    async def typed(self, request: Request, text: str) -> AcceptedToken:
        """Whom the token ``text`` stands for, which somebody typed into the form of ``request``.
        Without roles that are bound here: a session must not keep what may be taken away."""
        sent = Sent(text)
        try:
            if sent.key not in self._remembered:
                self._pay(request, f"{_GUESSES}{_address(request)}")
            await self._accepted(sent, request)
            return await run_in_threadpool(self._given, sent, self._clock())
        except NotAccepted as error:
            raise _unauthorized(str(error)) from None

    async def begin(self, accepted: AcceptedToken) -> str:
        """The secret of a new session of whom ``accepted`` stands for."""
        at = self._clock()

        def begin() -> str:
            with Session(self._engine) as session:
                text = browser_sessions.begin(session, accepted, at=at)
                session.add(entry(accepted.caller, "sign in", accepted.caller.name, "done"))
                session.commit()
            return text

        return await run_in_threadpool(begin)

    async def end(self, text: str) -> None:
        """End the session ``text``, if it is one."""
        self._remembered.pop(Sent(text, session=True).key, None)

        def end() -> None:
            with Session(self._engine) as session:
                name = browser_sessions.end(session, text)
                if name is not None:
                    session.add(
                        entry(Caller(name=name, account="public"), "sign out", name, "done")
                    )
                session.commit()

        await run_in_threadpool(end)
        # One that a request brought back meanwhile.
        self._remembered.pop(Sent(text, session=True).key, None)

    async def known(self, request: Request) -> bool:
        """Whether the caller may send as much as one with a token. Asked during a body that exceeds
        the limit for callers without one.
        """
        caller = await self.again(request)
        return caller is not None and not caller.public

    async def _accepted(self, sent: Sent, request: Request) -> AcceptedToken:
        """Whom ``sent`` stands for. If ``request`` was counted as a guess, it was none: they pay.

        Raises:
            NotAccepted: Nobody.
            Problem: 429, their bucket is empty.
        """
        accepted = await self._found(sent)
        bucket = getattr(request.state, "bucket", "")
        if bucket.startswith(_GUESSES):
            self._buckets.give_back(bucket)
            self._pay(request, _own(accepted.caller))
        return accepted

    async def _found(self, sent: Sent) -> AcceptedToken:
        """Whom ``sent`` stands for, as it is remembered or as the store has it.

        Raises:
            NotAccepted: Nobody.
        """
        key, now = sent.key, self._clock()
        seen = self._remembered.get(key)
        if seen is not None and now < seen[1]:
            return seen[0]
        try:
            if len(sent.text) > MAX_TOKEN:
                raise NotAccepted("This is no token of this service")
            accepted = await run_in_threadpool(self._look, sent, now)
        except NotAccepted:
            self._remembered.pop(key, None)
            raise
        self._remembered.pop(key, None)
        self._remembered[key] = accepted, min(now + timedelta(seconds=REMEMBERED), accepted.expires)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return accepted

    def _look(self, sent: Sent, at: datetime) -> AcceptedToken:
        accepted = self._given(sent, at)
        with Session(self._engine) as session:
            return _with_roles(session, accepted, at)

    def _given(self, sent: Sent, at: datetime) -> AcceptedToken:
        """Whom ``sent`` stands for by itself, without roles that are bound here."""
        if not sent.session and not sent.text.startswith(PREFIX) and self._verify is not None:
            return self._verify(sent.text)
        with Session(self._engine) as session:
            if sent.session:
                return _of_session(session, sent.text, at)
            return accept(session, sent.text, at=at)


def _with_roles(session: Session, accepted: AcceptedToken, at: datetime) -> AcceptedToken:
    """``accepted`` with the roles in force at ``at``, remembered no longer than they last."""
    caller = accepted.caller
    rows = of_caller(session, caller.name, caller.groups, at=format_time(at))
    ends = [parse_time(row.until) for row in rows if row.until is not None]
    return replace(
        accepted,
        caller=replace(caller, bound=tuple(_bound(row.model_dump()) for row in rows)),
        expires=min([accepted.expires, *ends]),
    )


def _bound(row: dict[str, Any]) -> PlaceRole:
    return PlaceRole(role=row["role"], reach=row["scope"], place=row["place"], until=row["until"])


def _of_session(session: Session, text: str, at: datetime) -> AcceptedToken:
    """Whom a session is of; that it was used is written down from time to time."""
    accepted, due = browser_sessions.accept(session, text, at=at)
    try:
        if due:
            browser_sessions.note_use(session, text, at=at)
            session.commit()
    except OperationalError:
        session.rollback()  # The store is busy: a later use is noted.
    return accepted


def _own(caller: Caller) -> str:
    """The bucket of a caller whose token or session is accepted."""
    return f"token {caller.token}" if caller.token else f"user {caller.name}"


def _address(request: Request) -> str:
    return f"address {address_key(request.client.host if request.client else 'unknown')}"


def _sent(request: Request) -> Sent | None:
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise NotAccepted("The Authorization header holds no bearer token")
        return Sent(text.strip())
    text = session_cookie.read(request, session_cookie.COOKIE) or ""
    if not text or not (request.method in _SAFE or is_own_page(request)):
        return None
    return Sent(text, session=True)


def is_own_page(request: Request) -> bool:
    """Whether the browser says that a page of this service sent ``request``. By ``Sec-Fetch-Site``,
    or by ``Origin`` where a browser does not send that."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


def _own_site(request: Request) -> None:
    """Refuse what a page of another site makes a browser send to a service without tokens."""
    origin = request.headers.get("origin")
    if origin is None or urlsplit(origin).netloc == request.headers.get("host"):
        return
    raise Problem(403, "Another site", "A page of another site sent this request")


def _unauthorized(detail: str) -> Problem:
    return Problem(
        401,
        "Not authenticated",
        detail,
        "Send Authorization: Bearer with a token from `govray token new`",
        headers={"WWW-Authenticate": 'Bearer realm="govray"'},
    )


@refuses(401)
async def _caller(request: Request, _shown: Annotated[object, Security(_bearer)]) -> Caller:
    gate: AccessGate = request.app.state.gate
    caller = await gate.caller(request)
    request.state.caller = caller
    return caller


CallerDep = Annotated[Caller, Depends(_caller)]
"""The `Caller` of this request; whoever they are, they may read."""


@cache
def needs(action: Action, *, whole: bool = False) -> Any:
    """A dependency that refuses callers who may do ``action`` nowhere, or not with their token.

    ``dependencies=[needs("submit")]``. What there is to them is then up to the route.

    Args:
        whole: They may do it in the whole organisation.
    """

    right = RIGHTS[action]

    @refuses(403)
    async def check(caller: CallerDep) -> Caller:
        if not (everywhere if whole else somewhere)(caller, action):
            if caller.public:
                raise _unauthorized("This needs a token")
            where = " of the whole organisation" if whole else ""
            roles = right.everywhere if whole else right.place | right.everywhere
            raise not_allowed(
                f"No role of yours allows this. It is for {' and '.join(sorted(roles))}{where}, "
                f"not {caller.role}",
                "Ask an admin for a role",
            )
        scope = right.scope
        if not caller.has(scope):
            raise not_allowed(
                f"The token has not the scope {scope}", "Make a token with that scope"
            )
        return caller

    return Depends(check)
