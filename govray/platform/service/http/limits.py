"""Bounds on what one request, or one caller, may take.

* A body above the size is a 413, whether its length was announced or not. A caller without a token
  that is accepted may send less: what reads the body may parse it before it knows the caller. A
  route that writes a body away as it comes may take more, and longer (`RequestBound`).
* A response that has not begun within the time is a 503. What runs in a thread cannot be stopped:
  it goes on until it ends and its answer is dropped. PostgreSQL ends a query after the same time;
  one of SQLite goes on.
* Each token, and each address without one, has a token bucket: ``burst`` requests at once, then
  ``rate`` a second. Beyond that is a 429 with the seconds to wait. Every request counts before a
  route is looked for: static files, the description and forms too. Buckets are this process's:
  behind n replicas the bound is n times as wide.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from govray.platform.service.http.problems import Answering, Problem, details

MAX_BUCKETS = 10_000


class Buckets:
    """Token buckets by key; the least recently used is forgotten above `MAX_BUCKETS`. ``rate``:
    requests a second. ``burst``: what a full bucket holds. ``clock``: seconds, monotonic."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self.rate = rate
        self.burst = burst
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        """Take one request from ``key``'s bucket. Raises 429: the bucket is empty."""
        left = self._add(key, -1)
        if left < 0:
            self._add(key, 1)
            wait = math.ceil(-left / self.rate)
            raise Problem(
                429,
                "Too many requests",
                f"More than {self.rate:g} requests a second",
                f"Wait {wait} s",
                headers={"Retry-After": str(wait)},
            )

    def give_back(self, key: str) -> None:
        """Undo one `take` of ``key``."""
        self._add(key, 1)

    def _add(self, key: str, requests: int) -> float:
        """Fill ``key``'s bucket for the time that has passed, then add ``requests``."""
        now = self._clock()
        left, at = self._left.pop(key, (float(self.burst), now))
        left = min(self.burst, left + (now - at) * self.rate) + requests
        self._left[key] = (min(self.burst, left), now)
        if len(self._left) > MAX_BUCKETS:
            self._left.popitem(last=False)
        return left


def address_key(host: str) -> str:
    """What bounds count ``host`` as: itself, or an IPv6 network of 64 bits, which one may hold."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address.packed[:8] + bytes(8), 64)))


@dataclass(frozen=True, kw_only=True)
class RequestBound:
    """What a request may take. ``body``: bytes of its body. ``seconds``: until its answer has
    begun."""

    body: int
    seconds: float


class Limits:
    """The layer that bounds rate, body and time, and sets the headers that every response has."""

    def __init__(
        self,
        app: ASGIApp,
        max_body: int,
        time_limit: float,
        max_stranger_body: int,
        known: Callable[[Request], Awaitable[bool]],
        count: Callable[[Request], None] = lambda _: None,
        answering: Answering = details,
        wider: Callable[[Scope], RequestBound | None] = lambda _: None,
    ) -> None:
        self.app = app
        self.answering = answering
        self.bound = RequestBound(body=max_body, seconds=time_limit)
        self.max_stranger_body = max_stranger_body
        self.known = known
        self.count = count
        self.wider = wider

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        bound = self.wider(scope) or self.bound
        # The response is the handler's, or ours when time is up: whoever begins it first.
        ours: asyncio.Task[None] | None = None
        begun = False
        size = 0

        async def sending(message: Message) -> None:
            nonlocal begun
            if ours is not None:
                return
            if message["type"] == "http.response.start":
                begun = True
                timer.cancel()
                message["headers"] = _headers(list(message.get("headers", ())))
            await send(message)

        known = False

        async def check_size(size: int) -> None:
            nonlocal known
            if size > bound.body:
                raise _too_large(bound.body)
            if size > self.max_stranger_body and not known:
                known = await self.known(Request(scope))
                if not known:
                    raise _too_large(self.max_stranger_body, " without a token that is accepted")

        async def receiving() -> Message:
            nonlocal size
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                await check_size(size)
            return message

        def time_is_up() -> None:
            nonlocal ours
            if not begun:
                late = self.answering(scope, _too_slow(bound.seconds), None)
                late.raw_headers[:] = _headers(late.raw_headers)
                ours = asyncio.ensure_future(late(scope, receive, send))

        timer = asyncio.get_running_loop().call_later(bound.seconds, time_is_up)
        try:
            try:
                self.count(Request(scope))
                await check_size(_announced(scope))
            except Problem as problem:
                await self.answering(scope, problem, None)(scope, receive, sending)
                return
            await self.app(scope, receiving, sending)
        finally:
            timer.cancel()
            if ours is not None:
                await ours


def _too_slow(seconds: float) -> Problem:
    return Problem(
        503,
        "Too slow",
        f"The answer was not ready within {seconds:g} s",
        "Ask for less at once, or try again",
        headers={"Retry-After": "5", "Connection": "close"},
    )


def _too_large(limit: int, whose: str = "") -> Problem:
    return Problem(
        413,
        "Too large",
        f"A request's body{whose} is at most {limit} bytes",
        "Send less at once",
        headers={"Connection": "close"},
    )


def _announced(scope: Scope) -> int:
    """The body's length as its header has it, 0 without; the bytes are counted anyway."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


def _headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """``headers`` and, where they are not set, those that keep an answer with its caller."""
    names = {name.lower() for name, _ in headers}
    if b"cache-control" not in names:
        headers.append((b"cache-control", b"no-store"))
    if b"x-content-type-options" not in names:
        headers.append((b"x-content-type-options", b"nosniff"))
    return headers
