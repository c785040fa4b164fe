"""Bodies, time and rates have bounds, and say so."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
import uvicorn
from fastapi import APIRouter, Body
from httpx import Client

from govray.cli.serve import LARGEST_HEAD, server_config
from govray.platform.service.app import create_app
from govray.platform.service.http import limits
from govray.platform.service.http.limits import address_key
from govray.platform.service.http.problems import MEDIA_TYPE, Problem
from govray.platform.service.http.settings import Settings
from govray.platform.store.database import open_store
from tests.support.people import Service, serve


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, max_body=1000) as running:
        yield with_echo(running)


def with_echo(service: Service) -> Service:
    """The service with a route that reads a text."""
    router = APIRouter()

    @router.post("/echo")
    def echo(text: Annotated[str, Body()]) -> int:
        return len(text)

    service.app.include_router(router)
    return service


@pytest.fixture
def hurried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Answers have a fifth of a second, and these two have none before it is up."""
    up, too_slow = threading.Event(), limits._too_slow

    def noted(seconds: float) -> Problem:
        up.set()
        return too_slow(seconds)

    monkeypatch.setattr(limits, "_too_slow", noted)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, time_limit=0.2) as running:
        router = APIRouter()

        @router.get("/slow")
        def slow() -> str:
            up.wait(60)
            return "late"

        @router.get("/hang")
        async def hang() -> str:
            await asyncio.to_thread(up.wait, 60)
            return "late"

        running.app.include_router(router)
        yield running


def test_a_body_is_bounded_announced_or_not(bounded: Service) -> None:
    client = bounded.client("public")
    assert client.post("/echo", json="x" * 900).status_code == 200

    def pieces() -> Iterator[bytes]:
        yield b'"'
        for _ in range(20):
            yield b"x" * 100
        yield b'"'

    head = {"content-type": "application/json"}
    for answer in (
        client.post("/echo", json="x" * 1000),
        client.post("/echo", content=pieces(), headers=head),
        client.post("/echo", content=b'"x"' + b" " * 2000, headers=head),
    ):
        assert answer.status_code == 413
        assert answer.headers["content-type"] == MEDIA_TYPE


@pytest.mark.parametrize("path", ["/slow", "/hang"])
def test_an_answer_that_is_late_is_a_503(hurried: Service, path: str) -> None:
    answer = hurried.client("public").get(path)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert answer.headers["cache-control"] == "no-store"
    assert "late" not in answer.text


@pytest.fixture
def rationed(tmp_path: Path) -> Iterator[Service]:
    """For whose rates no time goes by."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, rate=0.5, burst=3) as running:
        running.app.state.gate._buckets._clock = lambda: 0.0
        yield running


def test_each_token_has_its_own_rate_and_addresses_too(rationed: Service) -> None:
    for kind in ("auditor", "engineer", "public"):
        client = rationed.client(kind)
        wanted = 200 if kind != "public" else 401
        statuses = [client.get("/metrics").status_code for _ in range(4)]
        assert statuses == [wanted] * 3 + [429], kind
    answer = rationed.client("auditor").get("/metrics")
    assert answer.headers["retry-after"] == "2"
    assert rationed.client("public").get("/v1/health").status_code == 200


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, max_body=3000, max_stranger_body=1000) as running:
        yield with_echo(running)


def test_strangers_may_send_less(narrow: Service) -> None:
    """Announced or not, and to a route that would parse the body before it asks who sends it."""

    def sent(client: Client, letters: int, *, announced: bool) -> int:
        body = b'"' + b"x" * letters + b'"'
        content = body if announced else iter([body[:600], body[600:]])
        head = {"content-type": "application/json"}
        return client.post("/echo", content=content, headers=head).status_code

    guess = narrow.client("public", Authorization="Bearer govr_guess")
    for announced in (True, False):
        for client in (narrow.client("public"), guess):
            assert sent(client, 900, announced=announced) == 200
            assert sent(client, 1200, announced=announced) == 413
        assert sent(narrow.client("auditor"), 1200, announced=announced) == 200
        assert sent(narrow.client("auditor"), 3200, announced=announced) == 413
    said = narrow.client("public").post("/v1/attestations:verify", content=b"x" * 1200)
    assert "without a token" in said.json()["detail"]


def test_control_with_one_bound_for_all_a_stranger_sends_as_much(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, max_body=3000, max_stranger_body=3000) as running:
        answer = running.client("public").post("/v1/attestations:verify", content=b"x" * 1200)
        assert answer.status_code == 200


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


@contextmanager
def listening(app: Any, proxies: list[str]) -> Iterator[tuple[str, int]]:
    """The address of a running server of ``app``, as `govray serve` has it."""
    bound = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(server_config(app, proxies, own_log=False))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        while not running.started:
            time.sleep(0.01)
        yield bound.getsockname()
    finally:
        running.force_exit = running.should_exit = True
        thread.join()
        bound.close()


@pytest.mark.parametrize("proxies", [[], ["127.0.0.1"]])
def test_whom_a_client_claims_to_speak_for_is_believed_of_a_proxy_only(
    tmp_path: Path, proxies: list[str]
) -> None:
    url = f"sqlite:///{tmp_path}/govray.db"
    open_store(url, create=True).dispose()
    app = create_app(Settings(store=url, rate=0.001, burst=3))
    with listening(app, proxies) as (host, port):
        statuses = [
            httpx.get(
                f"http://{host}:{port}/v1/runs",
                headers={"X-Forwarded-For": f"192.0.2.{n}", "Authorization": "Bearer guess"},
                timeout=30,
            ).status_code
            for n in range(5)
        ]
        with socket.create_connection((host, port), timeout=30) as endless:
            endless.sendall(b"GET /v1/live HTTP/1.1\r\nX-Long: " + b"x" * LARGEST_HEAD)
            assert b"400" in endless.recv(1000).split(b"\r\n")[0]
    assert statuses == ([401] * 5 if proxies else [401] * 3 + [429] * 2)
