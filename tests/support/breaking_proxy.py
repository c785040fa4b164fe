"""A proxy between a client and a service, whose connections break in the middle of an answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from urllib.parse import urlsplit


class BreakingProxy:
    """Each connection carries one request.

    Attributes:
        limit: Bytes of an answer, its head counted, that are let through; None: all.
        holds: At the limit a connection stays open and silent, in place of ending.
        asked: The heads of the requests, in order.
        before: Called with the head of a request before it is passed on.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 0)
        self.limit: int | None = None
        self.holds = False
        self.asked: list[str] = []
        self.before: Callable[[str], None] = lambda head: None
        self.silent = Event()
        """Set once a connection is held."""
        self.ended = Event()

    def ranges(self, name: str) -> list[str | None]:
        """The ranges that were asked for of a file, in order; None where none was."""
        found: list[str | None] = []
        for head in self.asked:
            first, *fields = head.split("\r\n")
            if first.split(" ")[1].endswith(f"/files/{name}"):
                values = [each[7:] for each in fields if each.lower().startswith("range: ")]
                found.append(values[0] if values else None)
        return found

    def carry(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._upstream) as service:
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(65536)
                if not data:
                    return
                head += data
            self.asked.append(head.decode("latin-1"))
            self.before(self.asked[-1])
            service.sendall(head)
            left = self.limit
            while data := service.recv(65536 if left is None else min(65536, max(1, left))):
                if left is not None:
                    if left <= 0:
                        if self.holds:
                            self.silent.set()
                            self.ended.wait()
                        return
                    left -= len(data)
                client.sendall(data)


@contextmanager
def breaking_proxy(upstream: str) -> Iterator[tuple[BreakingProxy, str]]:
    """A proxy in front of ``upstream``, and its address."""
    proxy = BreakingProxy(upstream)
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def accept() -> None:
            while not proxy.ended.is_set():
                with suppress(OSError):
                    client, _ = taken.accept()
                    Thread(target=proxy.carry, args=(client,), daemon=True).start()

        Thread(target=accept, daemon=True).start()
        yield proxy, f"http://127.0.0.1:{taken.getsockname()[1]}"
        proxy.ended.set()
        taken.shutdown(socket.SHUT_RDWR)
