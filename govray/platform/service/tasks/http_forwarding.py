"""One HTTP request or one WebSocket (RFC 6455), to the program and back, streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import aiohttp
from starlette.requests import ClientDisconnect, Request
from starlette.types import Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from yarl import URL

from govray.platform.service.http import problems
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


# One WebSocket, to the program and back (RFC 6455).
#
# The program is connected first: what it does not accept, the browser is not promised. While both
# are open, the session is looked at again and again. When it has ended, so does the WebSocket.


_NOT_ALLOWED = 1008
_GOING_AWAY = 1001
_CONNECT_SECONDS = 30.0


async def forward_socket(
    client: aiohttp.ClientSession,
    endpoint: Endpoint,
    websocket: WebSocket,
    *,
    max_message: int,
    look: Callable[[], Awaitable[None]],
    every: float,
) -> None:
    """Forward messages both ways until one side closes or the session ends.

    Args:
        max_message: Bytes of a message from the program.
        look: Raises a `Problem` once the session has ended.
        every: Seconds between two looks.
    """
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            program = await client.ws_connect(
                target(endpoint, websocket.scope),
                headers=to_program(websocket.scope["headers"], endpoint),
                protocols=websocket.scope["subprotocols"],
                max_msg_size=max_message,
                heartbeat=30.0,
                # A reply that fails would replace the code that the program closed with.
                autoclose=False,
            )
    except (aiohttp.ClientError, TimeoutError):
        refusal = Problem(502, "No answer", "The task's program accepts no such WebSocket")
        await websocket.send_denial_response(problems.response(refusal))
        return
    async with program:
        await websocket.accept(subprotocol=program.protocol)
        sides = {
            asyncio.create_task(_from_browser(websocket, program)),
            asyncio.create_task(_from_program(websocket, program)),
            asyncio.create_task(_until_ended(look, every)),
        }
        done, rest = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        for each in rest:
            each.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        code = next((each.result() for each in done if not each.exception()), _GOING_AWAY)
        await program.close(code=_GOING_AWAY)
        if websocket.client_state is WebSocketState.CONNECTED:
            with suppress(RuntimeError, WebSocketDisconnect):
                await websocket.close(code)


async def _from_browser(websocket: WebSocket, program: aiohttp.ClientWebSocketResponse) -> int:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return _GOING_AWAY
        if (text := message.get("text")) is not None:
            await program.send_str(text)
        elif (data := message.get("bytes")) is not None:
            await program.send_bytes(data)


async def _from_program(websocket: WebSocket, program: aiohttp.ClientWebSocketResponse) -> int:
    async for message in program:
        if message.type is aiohttp.WSMsgType.TEXT:
            await websocket.send_text(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY:
            await websocket.send_bytes(message.data)
    code = program.close_code
    # Codes that are never sent (RFC 6455, section 7.4.1).
    return (
        code
        if code and 1000 <= code < 5000 and code not in (1004, 1005, 1006, 1015)
        else _GOING_AWAY
    )


async def _until_ended(look: Callable[[], Awaitable[None]], every: float) -> int:
    while True:
        await asyncio.sleep(every)
        try:
            await look()
        except Problem:
            return _NOT_ALLOWED
