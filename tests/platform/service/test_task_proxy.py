"""The proxy before a program of the test's own: who is let in, what passes, what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import Engine
from sqlmodel import Session, select
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from govray.platform.service.http.origin import TaskOrigins, network
from govray.platform.service.identity import tokens
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.tokens import digest
from govray.platform.service.tasks import gate, tickets
from govray.platform.service.tasks.app import ProxyBounds, create_tasks_app
from govray.platform.store.database import open_store
from govray.platform.store.tables import QueueEntry, TaskTicket, UserRow
from govray.platform.tasks.endpoint import Endpoint, register
from tests.support.shown_task import entry

START = datetime(2026, 11, 24, 9, tzinfo=UTC)
TOKEN = "t" * 43


@dataclass
class Upstream:
    """A program that says what it was sent."""

    address: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def program() -> Iterator[Upstream]:
    upstream = Upstream()
    ready, loop = threading.Event(), asyncio.new_event_loop()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            upstream.seen.append(dict(request.headers))
            socket = web.WebSocketResponse(protocols=("v1.test",))
            await socket.prepare(request)
            async for message in socket:
                if message.data == "end":
                    await socket.close(code=4321)
                    break
                await (
                    socket.send_str(f"{message.data}!")
                    if isinstance(message.data, str)
                    else socket.send_bytes(message.data)
                )
            return socket
        body = await request.read()
        upstream.seen.append(
            {"method": request.method, "path": request.raw_path, "body": len(body)}
            | {name.lower(): value for name, value in request.headers.items()}
        )
        response = web.Response(status=207, body=b"x" * 100_000)
        response.headers["Set-Cookie"] = "a=b; Path=/"
        response.headers["Access-Control-Allow-Origin"] = "*"
        return response

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        upstream.address = f"http://127.0.0.1:{port}"
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(30)
    yield upstream
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


@dataclass
class Proxy:
    engine: Engine
    storage: Path
    task: str
    client: TestClient
    clock: list[datetime]

    @property
    def base(self) -> str:
        return f"/tasks/{self.task}/"

    def ticket(self, **who: Any) -> str:
        caller = Caller(name="engineer", account="engineer", **who)
        with Session(self.engine) as session:
            secret = tickets.ticket(session, self.task, caller, at=self.clock[0])
            session.commit()
        return secret

    def enter(self, ticket: str | None = None) -> str:
        """The session's cookie."""
        answer = self.client.get(
            f"{self.base}enter", params={"ticket": ticket or self.ticket()}, follow_redirects=False
        )
        assert answer.status_code == 303
        value: str = answer.headers["set-cookie"].partition(";")[0]
        self.client.cookies.clear()
        return value

    def socket(self, headers: dict[str, str], **more: Any) -> Any:
        """A WebSocket of the task's own host."""
        origin = str(self.client.base_url).replace("http", "ws", 1)
        return self.client.websocket_connect(f"{origin}{self.base}s", headers=headers, **more)

    def refused(self, headers: dict[str, str]) -> int:
        with pytest.raises(WebSocketDenialResponse) as raised:
            self.socket(headers).__enter__()
        return raised.value.status_code

    def get(self, cookie: str, path: str = "x", **headers: str) -> int:
        return self.client.get(
            f"{self.base}{path}", headers={"Cookie": cookie, **headers}
        ).status_code


@contextlib.contextmanager
def proxied(
    tmp_path: Path, program: Upstream, networks: str | None = "127.0.0.0/8", **bounds: Any
) -> Iterator[Proxy]:
    engine = open_store(f"sqlite:///{tmp_path / 'store.db'}", create=True)
    task = entry(engine)
    register(
        tmp_path,
        Endpoint(
            task=task,
            kind="notebook",
            address=program.address,
            token=TOKEN,
            landing="lab",
            started="2026-11-24T09:00:00Z",
        ),
    )
    origins = TaskOrigins(
        url="http://{task}.localhost:8586",
        storage=tmp_path,
        networks=(network(networks),) if networks else (),
    )
    clock = [START]
    app = create_tasks_app(engine, origins, bounds=ProxyBounds(**bounds), clock=lambda: clock[0])
    with TestClient(app, base_url=origins.of(task), raise_server_exceptions=False) as client:
        yield Proxy(engine, tmp_path, task, client, clock)


@pytest.fixture
def proxy(tmp_path: Path, program: Upstream) -> Iterator[Proxy]:
    program.seen.clear()
    with proxied(tmp_path, program) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "REMEMBERED", 0.0)


def test_bodies_pass_both_ways_and_the_person_does_not(proxy: Proxy, program: Upstream) -> None:
    cookie = proxy.enter()
    answer = proxy.client.post(
        f"{proxy.base}a%2Fb/../c?q=%20",
        content=(b"y" * 1000 for _ in range(100)),
        headers={
            "Cookie": f"{cookie}; govray_token=govr_secret; mine=1",
            "Authorization": "Bearer govr_secret",
            "Origin": str(proxy.client.base_url),
        },
    )
    assert answer.status_code == 207
    assert answer.content == b"x" * 100_000
    assert answer.headers["set-cookie"] == f"a=b; Path={proxy.base}"
    assert "access-control-allow-origin" not in answer.headers
    (seen,) = program.seen
    assert seen["body"] == 100_000
    assert seen["authorization"] == f"token {TOKEN}"
    assert seen["cookie"] == "mine=1"
    assert "%20" in seen["path"]
    assert "secret" not in json.dumps(seen)
    assert cookie.partition("=")[2] not in json.dumps(seen)


def test_who_is_disabled_sees_nothing_without_a_token_too(proxy: Proxy) -> None:
    """As one who signed in at a provider, and has an account here besides."""
    secret = proxy.enter().partition("=")[2]
    with Session(proxy.engine) as session:
        assert tickets.admitted(session, proxy.task, secret, at=proxy.clock[0])  # the control
        user = session.get(UserRow, "engineer") or UserRow(
            name="engineer", role="engineer", created="2026-11-24T09:00:00Z"
        )
        user.disabled = True
        session.add(user)
        session.flush()
        assert not tickets.admitted(session, proxy.task, secret, at=proxy.clock[0])
        session.rollback()


def test_a_ticket_is_good_once_for_a_minute_and_for_one_task(proxy: Proxy) -> None:
    ticket = proxy.ticket()
    cookie = proxy.enter(ticket)
    assert proxy.get(cookie) == 207
    enter = f"{proxy.base}enter"
    assert proxy.client.get(enter, params={"ticket": ticket}).status_code == 401
    # A ticket is no session, and a session no ticket.
    assert proxy.get(f"govray_task={proxy.ticket()}") == 401
    secret = cookie.partition("=")[2]
    assert proxy.client.get(enter, params={"ticket": secret}).status_code == 401
    late = proxy.ticket()
    proxy.clock[0] += timedelta(seconds=tickets.ENTRY_SECONDS)
    assert proxy.client.get(enter, params={"ticket": late}).status_code == 401
    other = entry(proxy.engine)
    with Session(proxy.engine) as session:
        assert not tickets.admitted(session, other, secret, at=proxy.clock[0])
        assert tickets.admitted(session, proxy.task, secret, at=proxy.clock[0])  # the control
        kept = session.exec(select(TaskTicket)).all()
    assert {each.digest for each in kept} >= {digest(secret)}
    assert secret not in repr(kept)


def test_a_session_ends_with_its_time_and_with_the_persons_token(proxy: Proxy) -> None:
    with Session(proxy.engine) as session:
        text = tokens.new(session, "engineer", role="engineer", at=START)
        row = tokens.row(session, text)
        session.commit()
        id_ = row.id
    cookie = proxy.enter(proxy.ticket(token=id_))
    assert proxy.get(cookie) == 207
    proxy.clock[0] += timedelta(hours=tickets.SESSION_HOURS)
    assert proxy.get(cookie) == 401
    cookie = proxy.enter(proxy.ticket(token=id_))
    assert proxy.get(cookie) == 207
    with Session(proxy.engine) as session:
        tokens.revoke(session, id_, at=proxy.clock[0])
        session.commit()
    assert proxy.get(cookie) == 401


def test_a_session_without_a_token_ends_with_its_user(proxy: Proxy) -> None:
    cookie = proxy.enter()
    assert proxy.get(cookie) == 207
    with Session(proxy.engine) as session:
        tokens.new(session, "engineer", role="engineer", at=START)
        user = session.exec(select(UserRow).where(UserRow.name == "engineer")).one()
        user.disabled = True
        session.commit()
        assert not tickets.admitted(
            session, proxy.task, cookie.partition("=")[2], at=proxy.clock[0]
        )
        user.disabled = False
        session.commit()
        assert tickets.admitted(session, proxy.task, cookie.partition("=")[2], at=proxy.clock[0])


@pytest.mark.parametrize(
    "cookie",
    ["", "govray_task=", "govray_task=guess", "govray_task=" + "x" * 5000, "govray_token=x"],
)
def test_without_a_session_it_is_401_whether_there_is_a_task_or_not(
    proxy: Proxy, program: Upstream, cookie: str
) -> None:
    assert proxy.get(cookie) == 401
    headers = {"Cookie": cookie, "Host": "s-none.localhost:8586"}
    assert proxy.client.get("/tasks/s-none/x", headers=headers).status_code == 401
    assert proxy.refused({"Cookie": cookie}) == 401
    assert program.seen == []


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8585", "http://s-2.localhost:8586", "null"])
def test_other_origins_change_nothing(proxy: Proxy, program: Upstream, origin: str) -> None:
    cookie = proxy.enter()
    headers = {"Cookie": cookie, "Origin": origin}
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert proxy.client.request(method, f"{proxy.base}x", headers=headers).status_code == 403
    assert proxy.refused(headers) == 403
    assert program.seen == []
    headers["Origin"] = str(proxy.client.base_url)
    assert proxy.client.post(f"{proxy.base}x", headers=headers).status_code == 207  # the control


def test_a_task_answers_at_its_own_host_alone(proxy: Proxy) -> None:
    cookie = proxy.enter()
    for host in ("127.0.0.1:8586", "localhost:8586", "s-2.localhost:8586", ""):
        assert proxy.get(cookie, Host=host) == 421
    assert proxy.get(cookie) == 207


def test_messages_pass_both_ways_with_their_protocol(proxy: Proxy, program: Upstream) -> None:
    headers = {"Cookie": proxy.enter(), "Origin": str(proxy.client.base_url)}
    with proxy.socket(headers, subprotocols=["v1.test"]) as socket:
        assert socket.accepted_subprotocol == "v1.test"
        socket.send_text("hello")
        assert socket.receive_text() == "hello!"
        socket.send_bytes(b"\0" * 100_000)
        assert socket.receive_bytes() == b"\0" * 100_000
        socket.send_text("end")
        with pytest.raises(WebSocketDisconnect) as ending:
            socket.receive_text()
    assert ending.value.code == 4321
    (seen,) = program.seen
    assert "govray" not in json.dumps(seen)


def test_an_open_websocket_ends_with_its_session(tmp_path: Path, program: Upstream) -> None:
    with proxied(tmp_path, program, recheck_seconds=0.1) as proxy:
        headers = {"Cookie": proxy.enter(), "Origin": str(proxy.client.base_url)}
        with proxy.socket(headers) as socket:
            socket.send_text("hello")
            assert socket.receive_text() == "hello!"
            proxy.clock[0] += timedelta(hours=tickets.SESSION_HOURS)
            with pytest.raises(WebSocketDisconnect) as ending:
                socket.receive_text()
    assert ending.value.code == 1008


def test_it_connects_to_the_networks_that_were_named_alone(
    tmp_path: Path, program: Upstream
) -> None:
    """Whoever writes to the storage may name any address; the control is every other test."""
    program.seen.clear()
    with proxied(tmp_path, program, networks="10.0.0.0/8") as proxy:
        assert proxy.get(proxy.enter()) == 502
    assert program.seen == []


@pytest.mark.parametrize(
    ("node", "status"),
    [(None, 503), ("127.0.0.1", 207), ("127.0.0.2", 207), ("10.0.0.7", 502)],
)
def test_without_networks_it_connects_to_the_node_that_the_queue_names(
    tmp_path: Path, program: Upstream, node: str | None, status: int
) -> None:
    with proxied(tmp_path, program, networks=None) as proxy:
        with Session(proxy.engine) as session:
            session.get_one(QueueEntry, proxy.task).node = node
            session.commit()
        assert proxy.get(proxy.enter()) == status


@pytest.mark.parametrize(
    ("address", "node", "reached"),
    [
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.8", "10.0.0.7", False),
        ("127.0.0.1", "10.0.0.7", False),  # the service's own machine
        ("169.254.169.254", "169.254.169.254", False),  # a cloud's keys
        ("fe80::1", "fe80::1", False),
        ("fd00::7", "fd00::7", True),
    ],
)
def test_a_task_is_reached_at_its_own_node_alone(
    tmp_path: Path, address: str, node: str, reached: bool
) -> None:
    origins = TaskOrigins(url="https://{task}.example.org", storage=tmp_path)
    assert origins.reaches(ipaddress.ip_address(address), node) is reached
    named = replace(origins, networks=(network(f"{address}/32" if "." in address else "::/0"),))
    assert named.reaches(ipaddress.ip_address(address), None)  # the operator's own word


def test_bodies_websockets_and_guesses_are_bounded(tmp_path: Path, program: Upstream) -> None:
    with proxied(tmp_path, program, max_body=1000, max_sockets=1, rate=0.001, burst=6) as proxy:
        cookie = proxy.enter()
        headers = {"Cookie": cookie, "Origin": str(proxy.client.base_url)}
        large = proxy.client.post(f"{proxy.base}x", content=b"x" * 1001, headers=headers)
        assert large.status_code == 413
        with proxy.socket(headers) as socket:
            assert proxy.refused(headers) == 503
            socket.send_text("end")
            with pytest.raises(WebSocketDisconnect):
                socket.receive_text()
        said = [proxy.get("govray_task=guess") for _ in range(8)]
        assert 401 in said
        assert said[-1] == 429
