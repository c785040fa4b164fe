"""A small, cheap HTTP client for `benchmarks.service`: keep-alive, no pool.

One task uses one connection. A failed request closes it, and the next one opens another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_GIVEN_UP = 30.0


@dataclass(frozen=True)
class Query:
    """A kind of request. ``paths`` are asked in turn; ``check`` also gets the turn's number."""

    name: str
    paths: Sequence[str]
    check: Callable[[int, int, bytes], str | None]


@dataclass(frozen=True)
class Answer:
    """One request: when it began (`time.monotonic`), how long it took, and its error.

    ``reconnected``: its connection had been closed since the last answer.
    """

    began: float
    seconds: float
    status: int
    wrong: str | None
    reconnected: bool


@dataclass
class Client:
    """One keep-alive connection to ``127.0.0.1:port``."""

    port: int
    token: str
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(
        default=None, init=False
    )

    reconnected: bool = field(default=False, init=False)
    """Whether the last request found its connection closed."""

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body; 0 if the connection broke or nothing came."""
        kept, self.reconnected = self._streams is not None, False
        status, body = await self._try(path)
        if kept and status == 0 and not body:
            self.reconnected = True
            status, body = await self._try(path)
        return status, body

    async def _try(self, path: str) -> tuple[int, bytes]:
        """The answer; if the connection broke, 0 and the bytes received."""
        try:
            return await asyncio.wait_for(self._get(path), _GIVEN_UP)
        except (TimeoutError, OSError, EOFError, ValueError) as error:
            await self.close()
            closed = isinstance(error, ConnectionError | EOFError)
            return 0, getattr(error, "partial", b"") if closed else b"neither"

    async def _get(self, path: str) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        reader, writer = self._streams
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {self.token}\r\n\r\n".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        if b"transfer-encoding: chunked" in head:
            body = await _chunks(reader)
        else:
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
        if b"connection: close" in head:
            await self.close()
        return status, body

    async def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    found = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        found += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return found


async def ask(client: Client, query: Query, turn: int) -> Answer:
    """One request of a query."""
    which = turn % len(query.paths)
    began = time.monotonic()
    status, body = await client.get(query.paths[which])
    seconds = time.monotonic() - began
    wrong = query.check(which, status, body)
    return Answer(began, seconds, status, wrong, client.reconnected)


async def one_by_one(
    port: int, token: str, queries: Sequence[Query], requests: int, turns: int, seconds: float
) -> dict[str, list[Answer]]:
    """Ask the queries in turns, one request at a time, each ``requests`` times in a turn.

    It ends after ``turns``, or with the turn in which ``seconds`` have passed. The order rotates
    with every turn, so that drift of the machine affects all equally.
    """
    client = Client(port, token)
    found: dict[str, list[Answer]] = {query.name: [] for query in queries}
    stop = time.monotonic() + seconds
    for turn in range(turns):
        if time.monotonic() > stop:
            break
        first = turn % len(queries)
        for query in [*queries[first:], *queries[:first]]:
            for number in range(requests):
                found[query.name].append(await ask(client, query, turn * requests + number))
    await client.close()
    return found


async def at_once(
    port: int, token: str, queries: Sequence[Query], clients: int, seconds: float
) -> list[Answer]:
    """Ask the queries in turn on many connections, for ``seconds``."""
    found: list[Answer] = []
    stop = time.monotonic() + seconds

    async def one(number: int) -> None:
        client, turn = Client(port, token), number
        while time.monotonic() < stop:
            found.append(await ask(client, queries[turn % len(queries)], turn))
            turn += clients
        await client.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    return found
