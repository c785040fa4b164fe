"""From a request to its `Caller`, and what a route demands of one.

1. With authentication off every caller is admin; ``hosts`` and the origin keep other sites out.
2. ``Authorization: Bearer`` is a token of the store (``govr_…``) or, where an identity provider is
   configured, one of its (``oidc.py``). Pages send the same token as a cookie. It counts for
   requests that change nothing. For others it counts only if the browser says the request is from
   our own page.
3. What is sent and not accepted is a 401: a bad token never falls back to being public.
4. Without a token the caller is public.
5. Each request takes from the bucket of its token, or of its address. A token that was not seen
   before takes from its address's bucket of guesses first, which gets it back if it is accepted.

An accepted token is remembered for `REMEMBERED` seconds with its roles, which saves queries for
each request. A revocation, or a role that is taken away, takes effect within that time. An expiry
of the token or of a role does so at once.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool

from govray.service.audit_log import Audit
from govray.service.bound_roles import with_roles
from govray.service.caller import LOCAL, PUBLIC, Caller, Role, Scope, permitted
from govray.service.limits import Buckets, address_key
from govray.service.problems import Problem
from govray.service.tokens import PREFIX, Accepted, NotAccepted, accept

__all__ = ["AuditDep", "Caller", "CallerDep", "require"]

COOKIE = "govray_token"
REMEMBERED = 2.0
MAX_REMEMBERED = 10_000
MAX_TOKEN = 8192

Verify = Callable[[str], Accepted]
"""Checks a token that is not ours, now. Raises `NotAccepted`."""

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="`govray token new` makes one. OIDC bearer tokens too, where configured.",
)
_SAFE = frozenset({"GET", "HEAD"})


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
        self._remembered: OrderedDict[bytes, tuple[Accepted, datetime]] = OrderedDict()

    async def caller(self, request: Request) -> Caller:
        """Who sent ``request``.

        Raises:
            Problem: 401, a token was sent and is not accepted; 403, a page of another site
                sent it; 429, the bucket is empty.
        """
        if not self._auth:
            _own_site(request)
            return LOCAL
        host = request.client.host if request.client else "unknown"
        address = f"address {address_key(host)}"
        try:
            text = _sent(request)
        except NotAccepted as error:
            self._buckets.take(address)
            raise _unauthorized(str(error)) from None
        if text is None:
            self._buckets.take(address)
            return PUBLIC
        try:
            accepted = await self._accepted(text, f"guesses of {address}")
        except NotAccepted as error:
            raise _unauthorized(str(error)) from None
        caller = accepted.caller
        self._buckets.take(f"token {caller.token}" if caller.token else f"user {caller.name}")
        return caller

    async def known(self, request: Request) -> bool:
        """Whether the caller may send as much as one with a token. Asked during a body that exceeds
        the limit for callers without one.

        Raises:
            Problem: 429, as `caller`.
        """
        if not self._auth:
            return True
        try:
            text = _sent(request)
            if text is None:
                return False
            host = request.client.host if request.client else "unknown"
            await self._accepted(text, f"guesses of address {address_key(host)}")
        except NotAccepted:
            return False
        return True

    async def _accepted(self, text: str, guesses: str) -> Accepted:
        """Whom ``text`` stands for; a guess costs the bucket ``guesses`` before it costs a query.

        Raises:
            NotAccepted: Nobody.
            Problem: 429, that bucket is empty.
        """
        key, now = hashlib.sha256(text.encode()).digest(), self._clock()
        seen = self._remembered.get(key)
        if seen is not None and now < seen[1]:
            return seen[0]
        if seen is None:
            self._buckets.take(guesses)
        try:
            if len(text) > MAX_TOKEN:
                raise NotAccepted("This is no token of this service")
            accepted = await run_in_threadpool(self._look, text, now)
        except NotAccepted:
            self._remembered.pop(key, None)
            raise
        if seen is None:
            self._buckets.give_back(guesses)
        self._remembered.pop(key, None)
        self._remembered[key] = accepted, min(now + timedelta(seconds=REMEMBERED), accepted.expires)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return accepted

    def _look(self, text: str, at: datetime) -> Accepted:
        given = None
        if not text.startswith(PREFIX) and self._verify is not None:
            given = self._verify(text)
        with Session(self._engine) as session:
            return with_roles(session, given or accept(session, text, at=at), at=at)


def _sent(request: Request) -> str | None:
    """The token that ``request`` carries, if any.

    Raises:
        NotAccepted: Another scheme than Bearer.
    """
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise NotAccepted("The Authorization header holds no bearer token")
        return text.strip()
    if "cookie" not in request.headers:
        return None
    text = request.cookies.get(COOKIE, "")
    own = request.method in _SAFE or request.headers.get("sec-fetch-site") == "same-origin"
    return text if text and own else None


def _own_site(request: Request) -> None:
    """Refuse what a page of another site makes a browser send to a service without tokens.

    Raises:
        Problem: 403.
    """
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


async def _caller(request: Request, _shown: Annotated[object, Security(_bearer)]) -> Caller:
    gate: AccessGate = request.app.state.gate
    caller = await gate.caller(request)
    request.state.caller = caller
    return caller


CallerDep = Annotated[Caller, Depends(_caller)]
"""The `Caller` of this request; whoever they are, they may read."""


def require(
    *roles: Role, scope: Scope = "read", bound: Callable[[Caller], bool] = lambda _: False
) -> Callable[[Caller], Awaitable[Caller]]:
    """A dependency that refuses callers without one of ``roles``, or whose token lacks ``scope``.

    ``dependencies=[Depends(require("admin", "engineer", scope="write"))]``

    Args:
        bound: Whether roles in parts of the organisation open the route, too. What it answers to
            them is then up to the route.

    Raises:
        Problem: 401 without a token, else 403.
    """

    async def check(caller: CallerDep) -> Caller:
        if permitted(caller, roles, scope) or (bound(caller) and caller.has(scope)):
            return caller
        if caller.role == "public":
            raise _unauthorized("This needs a token")
        if caller.role in roles or bound(caller):
            raise Problem(
                403,
                "Not allowed",
                f"The token has not the scope {scope}",
                "Make a token with that scope",
            )
        raise Problem(403, "Not allowed", f"This is for {' and '.join(roles)}, not {caller.role}")

    return check


async def _audit(request: Request, caller: CallerDep) -> Audit:
    return Audit(request.app.state.engine, caller)


AuditDep = Annotated[Audit, Depends(_audit)]
"""What entries of the audit log are written with."""
