"""Bounds on connections, below what the application sees: slow, idle, many.

A request is the application's when its head is whole (RFC 9112, section 2.1). Until then, and
between requests, only the server can end a connection:

* A head that is not whole within `Bounds.head_seconds` is a 408. One above `Bounds.head_bytes` is a
  431. Bytes that keep coming after a response are dropped for as long.
* A reader that takes nothing of a response for `Bounds.write_seconds` loses the connection.
* One address holds at most `Bounds.per_address` connections, and all together `Bounds.total`.
  Further ones are closed with a 503. Only the second bound holds for a proxy in front, which is
  named.

Bodies have their bounds in `limits`: a response begins in time, or is a 503.

A server with WebSockets takes `BoundedSocket` for them. Each keeps its connection's place until it
ends, and its reader has the same seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from govray.platform.service.http.limits import address_key


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What connections may take.

    Attributes:
        head_seconds: From the connection, or the first byte of a next request, to a whole head.
        head_bytes: Of a request line and its header fields.
        write_seconds: Without the reader taking a byte of what waits for it.
        per_address: Connections of one address (an IPv6 network of 64 bits counts as one).
        total: Connections of all; below the usual 1,024 files of a process.
    """

    head_seconds: float = 10.0
    head_bytes: int = 64 * 1024
    write_seconds: float = 30.0
    per_address: int = 100
    total: int = 800


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP/1.1 protocol, within bounds. `bounded` makes the class that a server takes."""

    bounds: Bounds
    proxies: frozenset[str]
    held: Counter[str]
    """Connections that are open, by address; shared by all of one server."""

    _address: str | None = None
    _refused = False
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _head_read = 0
    _in_head = True
    _upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection and give its first head its time, or refuse it."""
        super().connection_made(transport)
        host = self.client[0] if self.client else "unknown"
        address = address_key(host)
        full = self.held.total() >= self.bounds.total
        if full or (host not in self.proxies and self.held[address] >= self.bounds.per_address):
            self._end(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections are open")
            return
        self._address = address
        self.held[address] += 1
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._give_back()

    def handle_websocket_upgrade(self) -> None:
        """Another protocol goes on with the connection, and gives its place back at its end."""
        self._upgraded = True
        super().handle_websocket_upgrade()
        after = self.transport.get_protocol()
        if isinstance(after, BoundedSocket):
            after.bounds = self.bounds
            after.give_back = self._give_back

    def _give_back(self) -> None:
        for timer in (self._timer, self._stalled):
            if timer is not None:
                timer.cancel()
        if self._address is not None:
            self.held[self._address] -= 1
            if not self.held[self._address]:
                del self.held[self._address]
            self._address = None

    def data_received(self, data: bytes) -> None:
        """Read on, as long as the head is within its bounds."""
        if self._refused:
            return
        if self._in_head:
            self._head_read += len(data)
        super().data_received(data)
        if self.transport.is_closing() or self._upgraded:
            return
        if self._in_head and self._head_read > self.bounds.head_bytes:
            self._end(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"A request's head is at most {self.bounds.head_bytes} bytes",
            )
        elif self.cycle is None or self.cycle.response_complete:
            # Not a request yet, or the rest of one that was answered: neither may last.
            self._await_head()

    def on_message_begin(self) -> None:
        """A request begins: so does its head's time."""
        super().on_message_begin()
        self._in_head = True
        self._await_head()

    def on_headers_complete(self) -> None:
        """The head is whole: from here on the application bounds the request."""
        self._in_head = False
        self._head_read = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """The reader is behind: give it its time."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.bounds.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.bounds.head_seconds, self._late)

    def _late(self) -> None:
        self._timer = None
        self._end(
            HTTPStatus.REQUEST_TIMEOUT,
            f"The request's head was not whole within {self.bounds.head_seconds:g} s",
        )

    def _end(self, status: HTTPStatus, why: str) -> None:
        """Answer ``status`` and close; whatever still comes is dropped."""
        self._refused = True
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # a second answer into the first would be read as its part
            return
        body = why.encode("ascii")
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, status.phrase.encode("ascii"), len(body), body)
        )
        self.transport.close()


class BoundedSocket(WebSocketsSansIOProtocol):
    """Uvicorn's WebSocket protocol, within the bounds of the connection that it goes on with."""

    bounds = Bounds()
    give_back: Callable[[], None] = staticmethod(lambda: None)
    _stalled: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.resume_writing()
        self.give_back()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.bounds.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def bounded(bounds: Bounds, proxies: Iterable[str] = ()) -> type[Any]:
    """The protocol class of one server: what ``uvicorn.Config(http=…)`` takes. ``proxies``:
    addresses of proxies in front, which speak for many."""
    shared = {"bounds": bounds, "proxies": frozenset(proxies), "held": Counter()}
    return type("Bounded", (BoundedProtocol,), shared)
