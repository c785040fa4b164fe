"""One HTTP request, to the program and back, streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
from starlette.requests import ClientDisconnect, Request
from starlette.types import Send
from yarl import URL

from govray.platform.service.http.problems import Problem
from govray.platform.service.tasks.headers import to_browser, to_program
from govray.platform.tasks.endpoint import Endpoint


async def forward_http(
    client: aiohttp.ClientSession, endpoint: Endpoint, request: Request, send: Send
) -> None:
    """Send ``request`` to the program and its answer to ``send``. When the browser goes away, so
    does the request to the program."""
    fields = request.headers
    read = asyncio.Event()
    has_body = "content-length" in fields or "transfer-encoding" in fields
    if not has_body:
        read.set()
    started = False
    try:
        async with client.request(
            request.method,
            target(endpoint, request.scope),
            headers=to_program(request.scope["headers"], endpoint),
            data=_body(request, read) if has_body else None,
            allow_redirects=False,
        ) as response:
            raw = [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in response.raw_headers
            ]
            started = True
            await send(
                {
                    "type": "http.response.start",
                    "status": response.status,
                    "headers": to_browser(raw, endpoint),
                }
            )
            await _answer(response, send, asyncio.create_task(_until_gone(request, read)))
    except (aiohttp.ClientError, TimeoutError):
        if started:
            return  # half an answer: the server breaks the connection
        raise Problem(
            502, "No answer", "The task's program does not answer", "Look again in a few seconds"
        ) from None
    except ClientDisconnect:
        return


def target(endpoint: Endpoint, scope: object) -> URL:
    """The program's address of what is asked for, byte for byte as the browser wrote it."""
    asked: dict[str, bytes] = scope  # type: ignore[assignment]
    path = asked["raw_path"].decode("ascii")
    query = asked["query_string"].decode("ascii")
    return URL(f"{endpoint.address}{path}{'?' if query else ''}{query}", encoded=True)


async def _body(request: Request, read: asyncio.Event) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk
    read.set()


async def _answer(
    response: aiohttp.ClientResponse, send: Send, leaving: asyncio.Task[None]
) -> None:
    try:
        while True:
            reading = asyncio.ensure_future(response.content.readany())
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                reading.cancel()
                with suppress(asyncio.CancelledError, aiohttp.ClientError):
                    await reading
                return
            chunk = await reading
            await send({"type": "http.response.body", "body": chunk, "more_body": bool(chunk)})
            if not chunk:
                return
    finally:
        leaving.cancel()


async def _until_gone(request: Request, read: asyncio.Event) -> None:
    """Return when the browser has gone away; its request is read by one alone at a time."""
    await read.wait()
    while (await request.receive())["type"] != "http.disconnect":
        pass
