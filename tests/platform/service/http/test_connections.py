"""Connections have bounds below the application: half requests take nobody's place for long."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
import uvicorn
from websockets.exceptions import WebSocketException
from websockets.sync import client as websockets

from govray.cli.serve import server_config
from govray.platform.service.app import create_app
from govray.platform.service.http.connections import BoundedSocket, Bounds, bounded
from govray.platform.service.http.limits import address_key
from govray.platform.service.http.settings import Settings
from govray.platform.store.database import open_store

QUICK = Bounds(head_seconds=0.5, head_bytes=4096, write_seconds=0.25, per_address=20, total=30)
PATIENT = replace(QUICK, head_seconds=300)
WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "


async def small(scope: Any, receive: Any, send: Any) -> None:
    """Answers ``ok``; ``/large`` answers 64 MiB, ``/early`` before it has read the body."""
    if scope["type"] != "http":
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(2 * QUICK.head_seconds)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/large":
        for _ in range(64):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def server(http: Any = None, config: uvicorn.Config | None = None) -> Iterator[tuple[str, int]]:
    """A running server of `small`, or of ``config``, and its address."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = config or uvicorn.Config(
        small, http=http, ws="none", log_config=None, log_level="critical"
    )
    running = uvicorn.Server(config)
    thread = Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield listening.getsockname()
    finally:
        running.force_exit = running.should_exit = True
        thread.join()
        listening.close()


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """A WebSocket that says what it is told; ``/flood`` says 64 MiB."""
    if scope["type"] != "websocket":
        return
    while (message := await receive())["type"] != "websocket.disconnect":
        if message["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})
            if scope["path"] == "/flood":
                for _ in range(64):
                    await send({"type": "websocket.send", "bytes": bytes(1 << 20)})
                await send({"type": "websocket.close"})
        else:
            await send({"type": "websocket.send", "text": message["text"]})


class Heard:
    """What a connection's protocol was told."""

    def __init__(self) -> None:
        self.behind, self.lost = Event(), Event()

    def of(self, protocol: type[Any]) -> type[Any]:
        """The protocol, which notes here that its reader is behind, and that it is gone."""
        heard = self

        class Noting(protocol):  # type: ignore[misc]
            def pause_writing(self) -> None:
                super().pause_writing()
                heard.behind.set()

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                heard.lost.set()

        return Noting


@contextmanager
def sockets(bounds: Bounds, ws: type[Any] = BoundedSocket) -> Iterator[str]:
    """The address of a server of `echo`."""
    http = bounded(bounds)
    config = uvicorn.Config(echo, http=http, ws=ws, lifespan="off", log_config=None)
    with server(config=config) as (host, port):
        yield f"ws://{host}:{port}/"


def connected(url: str) -> websockets.ClientConnection:
    """A connection, once the server has seen that earlier ones are closed."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return websockets.connect(url)
        except (WebSocketException, OSError):
            assert time.monotonic() < deadline


def test_a_websocket_outlives_the_time_of_its_head_and_gives_its_place_back() -> None:
    with sockets(replace(QUICK, per_address=2)) as url:
        for _ in range(5):
            with connected(url) as one:
                one.send("first")
                assert one.recv(timeout=20) == "first"
        with connected(url) as one, connected(url) as two:
            # The refusal comes before the request, for which the library's client is not made.
            assert b"503" in rest(upgrading(url))
            time.sleep(2 * QUICK.head_seconds)
            for each in (one, two):
                each.send("still here")
                assert each.recv(timeout=20) == "still here"


@pytest.mark.parametrize(("seconds", "ends"), [(0.3, True), (300.0, False)])
def test_a_websocket_whose_reader_takes_nothing_ends(seconds: float, ends: bool) -> None:
    """The second is the control: a patient server sends it all."""
    heard = Heard()
    with sockets(replace(QUICK, write_seconds=seconds), heard.of(BoundedSocket)) as url:
        connection = upgrading(url)
        assert (heard.lost if ends else heard.behind).wait(30)
        taken = 0
        with connection, suppress(ConnectionError):
            while taken < 64 << 20 and (data := connection.recv(1 << 20)):
                taken += len(data)
        assert (taken < 64 << 20) == ends


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with server(bounded(QUICK)) as found:
        yield found


def connect(address: tuple[str, int], first: bytes = HALF) -> socket.socket:
    connection = socket.create_connection(address, timeout=20)
    connection.sendall(first)
    return connection


def upgrading(url: str) -> socket.socket:
    """A connection that asks for the WebSocket ``/flood``, without a client behind it."""
    host, _, port = url.removeprefix("ws://").strip("/").partition(":")
    head = "GET /flood HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    return connect((host, int(port)), (head + key).encode())


def rest(connection: socket.socket) -> bytes:
    """What the server says until it closes."""
    said = b""
    with connection, suppress(ConnectionResetError):
        while part := connection.recv(1 << 20):
            said += part
    return said


def get(address: tuple[str, int], path: str = "/") -> httpx.Response:
    """The answer; a client that a busy machine kept from sending its head in time asks again."""
    host, port = address
    deadline = time.monotonic() + 30
    while (found := httpx.get(f"http://{host}:{port}{path}", timeout=20)).status_code == 408:
        assert time.monotonic() < deadline
    return found


def answers(address: tuple[str, int]) -> int:
    return get(address).status_code


def answered(address: tuple[str, int]) -> socket.socket:
    """A connection whose first request was answered; it is asked again as in `get`."""
    deadline = time.monotonic() + 30
    while True:
        connection = connect(address, WHOLE)
        if b"408" not in (said := connection.recv(4096)):
            assert b"200" in said
            return connection
        connection.close()
        assert time.monotonic() < deadline


@pytest.mark.parametrize("first", [b"", HALF, b"\r\n\r\n", b"GET "])
def test_a_head_that_stays_half_ends(address: tuple[str, int], first: bytes) -> None:
    began = time.monotonic()
    assert b"408" in rest(connect(address, first)).split(b"\r\n")[0]
    assert time.monotonic() - began >= 0.9 * QUICK.head_seconds
    assert answers(address) == 200


def test_a_head_that_drips_ends_all_the_same(address: tuple[str, int]) -> None:
    connection = connect(address)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012
        for _ in range(2000):
            connection.sendall(b"x")
            time.sleep(0.05)


def test_a_head_without_an_end_is_too_large() -> None:
    with server(bounded(PATIENT)) as address:
        connection = connect(address)
        for _ in range(2):
            connection.sendall(b"x" * 3000)
        assert b"431" in rest(connection)
        assert answers(address) == 200


def test_the_next_request_of_a_connection_has_the_same_bounds(address: tuple[str, int]) -> None:
    connection = answered(address)
    connection.sendall(HALF)
    assert b"408" in rest(connection)
    # Two whole requests one after the other, and then nothing, are no offence.
    connection = answered(address)
    connection.sendall(WHOLE)
    assert b"200" in connection.recv(4096)
    connection.close()


def test_blank_lines_between_requests_hold_no_place(address: tuple[str, int]) -> None:
    connection = answered(address)
    connection.sendall(b"\r\n")  # which ends the wait of a kept connection
    assert b"408" in rest(connection)


def test_a_long_answer_is_not_cut(address: tuple[str, int]) -> None:
    assert get(address, "/slow").text == "ok"


def test_a_reader_that_takes_nothing_loses_the_connection() -> None:
    heard = Heard()
    with server(heard.of(bounded(QUICK))) as address:
        connection = connect(address, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert heard.lost.wait(30)
        assert len(rest(connection)) < 64 << 20


def test_an_address_holds_so_many_and_gets_its_places_back() -> None:
    with server(bounded(PATIENT)) as address:
        held = [connect(address) for _ in range(PATIENT.per_address)]
        assert b"503" in rest(connect(address))
        for each in held:
            each.close()
        deadline = time.monotonic() + 30
        while answers(address) != 200:  # the server has yet to see that they closed
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_proxy_has_the_bound_of_all_and_no_other() -> None:
    with server(bounded(PATIENT, ["127.0.0.1"])) as address:
        held = [connect(address) for _ in range(PATIENT.per_address + 5)]
        assert answers(address) == 200
        held += [connect(address) for _ in range(PATIENT.total - len(held))]
        assert b"503" in rest(connect(address))
        for each in held:
            each.close()


def test_without_the_bounds_half_requests_stay() -> None:
    """The control: uvicorn alone waits for a head as long as the client likes."""
    with server("httptools") as address:
        held = [connect(address) for _ in range(QUICK.per_address + 1)]
        time.sleep(2 * QUICK.head_seconds)
        for each in held:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
            each.close()


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("testclient", "testclient"),
    ],
)
def test_what_counts_as_one_address(host: str, key: str) -> None:
    assert address_key(host) == key


@pytest.mark.parametrize("proxies", [[], ["127.0.0.1"]])
def test_whom_a_client_claims_to_speak_for_is_believed_of_a_proxy_only(
    tmp_path: Path, proxies: list[str]
) -> None:
    url = f"sqlite:///{tmp_path}/govray.db"
    open_store(url, create=True).dispose()
    app = create_app(Settings(store=url, rate=0.001, burst=3))
    with server(config=server_config(app, proxies)) as (host, port):
        statuses = [
            httpx.get(
                f"http://{host}:{port}/v1/trials",
                headers={"X-Forwarded-For": f"192.0.2.{n}", "Authorization": "Bearer guess"},
                timeout=30,
            ).status_code
            for n in range(5)
        ]
    assert statuses == ([401] * 5 if proxies else [401] * 3 + [429] * 2)
