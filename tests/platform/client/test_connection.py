"""Requests of the client: to whom a token goes, what an answer and a problem become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from govray.errors import Refused, UsageError
from govray.platform.client import Client
from govray.platform.client.connection import checked_url
from govray.platform.wire.answers import Experiment
from tests.support.listening import listening
from tests.support.people import Service
from tests.support.place import Place, place
from tests.support.runs import FILE
from tests.support.web_server import Handler, web_server

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
    assert isinstance(made, Experiment)
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
    with pytest.raises(Refused, match="only what is") as caught:
        ada.experiments.stop(made.id)
    assert caught.value.where == address


@pytest.mark.parametrize(
    ("kind", "call", "error", "said"),
    [
        ("public", lambda c: next(c.runs.list()), Refused, "token"),
        ("expired", lambda c: next(c.models.list()), Refused, "expired"),
        ("auditor", lambda c: c.experiments.submit(file=FILE), Refused, "not auditor"),
        ("engineer", lambda c: c.runs.get("none"), UsageError, "no run 'none'"),
        ("engineer", lambda c: c.experiments.submit(file="a: 1"), UsageError, "file"),
        ("engineer", lambda c: list(c.runs.list(state="NEW")), UsageError, ": state: Input"),
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


@dataclass
class Elsewhere:
    """A server that answers as it is told, and keeps what it was sent."""

    url: str = ""
    answer: tuple[int, dict[str, str]] = (200, {})
    sent: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def serving() -> Iterator[Elsewhere]:
    made = Elsewhere()

    class Answer(Handler):
        def do_GET(self) -> None:
            made.sent.append(dict(self.headers))
            status, headers = made.answer
            self.say(b"{}", status, headers)

    with web_server(Answer) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made


def test_a_redirect_takes_no_token_anywhere() -> None:
    with serving() as elsewhere, serving() as other:
        elsewhere.answer = (302, {"Location": f"{other.url}/v1/health"})
        with pytest.raises(UsageError, match="answers with another address"):
            Client(elsewhere.url, "govr_secret").service.health()
        assert (len(elsewhere.sent), other.sent) == (1, [])
