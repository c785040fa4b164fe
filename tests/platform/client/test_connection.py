"""Requests of the client: to whom a token goes, what an answer and a problem become."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from govray.errors import InfrastructureFailed, Malformed, Refused, UsageError
from govray.platform.client import Client, connect, connection
from govray.platform.client.connection import checked_url, segment
from govray.platform.client.documents import QueueEntry
from tests.support.listening import listening
from tests.support.people import Service
from tests.support.place import Place, place
from tests.support.runs import FILE

__all__ = ["place"]


@pytest.fixture(scope="module")
def address(place: Place) -> Iterator[str]:
    with listening(place.service.app) as found:
        yield found


@pytest.fixture
def service(place: Place) -> Service:
    return place.service


def client(service: Service, address: str, kind: str) -> Client:
    return Client(address, service.tokens.get(kind))


def test_a_submission_by_the_client_is_typed(service: Service, address: str) -> None:
    ada = client(service, address, "engineer")
    made = ada.experiments.submit(file=FILE, set=["max_steps=7"], tags=["a"], idempotency_key="k")
    assert isinstance(made, QueueEntry)
    assert (made.state, made.user, made.tags, made.forked_from) == (
        "QUEUED",
        "engineer",
        ["a"],
        None,
    )
    assert (
        ada.experiments.submit(file=FILE, set=["max_steps=7"], tags=["a"], idempotency_key="k")
        == made
    )
    fork = ada.experiments.submit(fork_of=made.id, priority=-5)
    assert fork.forked_from == made.id
    before, after = (ada.experiments.get(each.id).position or 0 for each in (made, fork))
    assert 0 < before < after
    assert ada.experiments.stop(made.id).state == "STOPPED"
    assert [each.state for each in ada.follow(made.id)] == ["STOPPED"]
    assert ada.experiments.tag(made.id, tags=["b"]).tags == ["b"]
    with pytest.raises(Refused, match="only what is") as caught:
        ada.experiments.stop(made.id)
    assert caught.value.where == address


def test_pages_are_one_iterator(
    service: Service, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = client(service, address, "auditor")
    whole = [each["id"] for each in ada.experiments.indexed()]
    monkeypatch.setattr(connection, "PAGE", 3)
    assert [each["id"] for each in ada.experiments.indexed()] == whole
    assert len(whole) == 8 == len(set(whole))
    assert {each["project"] for each in ada.experiments.indexed(project="other")} == {"other"}


def test_an_answer_is_as_much_as_the_caller_may_read(service: Service, address: str) -> None:
    staff = list(client(service, address, "auditor").models.list())
    public = list(client(service, address, "public").models.list())
    assert all(each.labels is not None for each in staff)
    assert [each.name for each in public] == ["narrow"]
    assert public[0].labels is None


def test_signed_bytes_come_as_they_are(place: Place, address: str) -> None:
    found = client(place.service, address, "public").attestations.get(
        place.library.digest("narrow")
    )
    assert found == place.library.envelope("narrow")
    checked = client(place.service, address, "public").attestations.verify(data=found)
    assert checked["outcome"] == "partlyChecked"


@pytest.mark.parametrize(
    ("kind", "call", "error", "said"),
    [
        ("public", lambda c: next(c.runs.list()), Refused, "token"),
        ("expired", lambda c: next(c.models.list()), Refused, "expired"),
        ("auditor", lambda c: c.experiments.submit(file=FILE), Refused, "not auditor"),
        ("engineer", lambda c: c.runs.get("none"), UsageError, "no trial 'none'"),
        ("engineer", lambda c: c.experiments.submit(file="a: 1"), UsageError, "body.file"),
        ("engineer", lambda c: c.runs.get(".."), UsageError, "names nothing"),
    ],
)
def test_a_problem_is_an_error_that_says_what_to_do(
    service: Service, address: str, kind: str, call: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        call(client(service, address, kind))
    assert type(caught.value) is error
    assert said in str(caught.value)
    assert "govr_" not in str(caught.value)


def test_a_service_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InfrastructureFailed, match="does not answer"):
        Client("http://127.0.0.1:9").service.health()


@pytest.mark.parametrize(
    "wrong",
    [
        "http://govray.example",
        "http://127.0.0.1.evil.example",
        "ftp://govray.example",
        "https://ada:secret@govray.example",
        "https://govray.example?x=1",
        "https://",
        "govray.example",
        "http://[::1",
        "https://govray.example:port",
    ],
)
def test_a_token_goes_over_https_or_to_this_machine(wrong: str) -> None:
    with pytest.raises(UsageError, match="no address that a token may be sent to") as caught:
        checked_url(wrong)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "right", ["https://govray.example/", "http://[::1]:8585", "http://localhost"]
)
def test_an_address_loses_its_last_slash(right: str) -> None:
    assert checked_url(right) == right.rstrip("/")


def test_a_segment_stays_one() -> None:
    assert segment("adapter:a/b?c") == "adapter%3Aa%2Fb%3Fc"
    assert segment("0/000.p/9", slashes=True) == "0/000.p/9"
    for step in ("", ".", "..", "a/../b"):
        with pytest.raises(UsageError):
            segment(step, slashes=True)


class Elsewhere:
    """A server that answers as it is told, and keeps what it was sent."""

    def __init__(self) -> None:
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b"{}")
        self.sent: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.sent.append(dict(self.headers))
                status, headers, body = outer.answer
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_redirect_takes_no_token_anywhere(elsewhere: Elsewhere) -> None:
    other = Elsewhere()
    elsewhere.answer = (302, {"Location": f"{other.url}/v1/health"}, b"")
    with pytest.raises(UsageError, match="answers with another address"):
        Client(elsewhere.url, "govr_secret").service.health()
    assert other.sent == []
    other.server.shutdown()
    other.server.server_close()


def test_an_answer_of_another_kind_is_refused(elsewhere: Elsewhere) -> None:
    for body in (b"<html>", b"[]", b'{"digest": 5}', b"\xff"):
        elsewhere.answer = (200, {}, body)
        with pytest.raises(Malformed, match="not what this client knows"):
            Client(elsewhere.url).archives.get("sha256:0")
    elsewhere.answer = (200, {}, b'{"items": [{}]}')
    with pytest.raises(Malformed):
        list(Client(elsewhere.url).models.list())


def test_what_a_newer_service_says_besides_is_left_out(elsewhere: Elsewhere) -> None:
    elsewhere.answer = (200, {}, json.dumps({"digest": "d", "bytes": "9", "new": 1}).encode())
    assert Client(elsewhere.url).archives.get("d").model_dump() == {"digest": "d", "bytes": "9"}


def test_a_huge_answer_is_cut(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LARGEST_ANSWER", 10)
    elsewhere.answer = (200, {}, b"x" * 11)
    with pytest.raises(Malformed, match="larger than 10 bytes"):
        Client(elsewhere.url).service.metrics()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (503, InfrastructureFailed),
        (429, InfrastructureFailed),
        (500, InfrastructureFailed),
        (418, UsageError),
    ],
)
def test_an_error_without_details_is_an_error(
    elsewhere: Elsewhere, status: int, error: type[Exception]
) -> None:
    elsewhere.answer = (status, {}, b"[1")
    with pytest.raises(error, match=f"the service answered {status}"):
        Client(elsewhere.url, "govr_secret").service.health()


def test_it_connects_by_the_environment(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GOVRAY_SERVER", raising=False)
    with pytest.raises(UsageError, match="no service is named"):
        connect()
    monkeypatch.setenv("GOVRAY_SERVER", f"{elsewhere.url}/")
    monkeypatch.setenv("GOVRAY_TOKEN", "govr_env")
    elsewhere.answer = (200, {}, b"text")
    connect().service.metrics()
    connect(token="govr_given").service.metrics()
    assert [each["Authorization"] for each in elsewhere.sent] == [
        "Bearer govr_env",
        "Bearer govr_given",
    ]
    assert "govr_" not in repr(connect())
