"""A request that comes twice makes one thing, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event
from sqlmodel import Session, select

from govray.platform.service.acting.project_rules import demand_manage
from govray.platform.service.identity import repeats
from govray.platform.service.identity.repeats import HELD, LASTS, HeldKey
from govray.platform.service.routes import projects
from govray.platform.store.database import open_store
from govray.platform.store.tables import Repeat, WorkspaceRow
from tests.support.databases import made_file, on_both, postgres, store_url
from tests.support.people import Service, serve

__all__ = ["made_file", "postgres", "store_url"]

PLACE = "/v1/workspaces"


@pytest.fixture
def service(store_url: str) -> Iterator[Service]:
    open_store(store_url, create=True).dispose()
    with serve(store_url) as running:
        yield running


def send(service: Service, name: str = "lab", kind: str = "admin", *, path: str = PLACE) -> Any:
    client = service.client(kind, **{"Idempotency-Key": "monday"})
    more = {} if path == PLACE else {"workspace": "default"}
    return client.post(path, json={"name": name, **more})


def workspaces(service: Service) -> list[str]:
    with Session(service.engine) as session:
        return sorted(session.exec(select(WorkspaceRow.name)))


def before_writing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let ``act`` happen while the first request is under way, before it writes."""
    left = [act]

    def demand(*args: Any, **more: Any) -> Any:
        if left:
            left.pop()()
        return demand_manage(*args, **more)

    monkeypatch.setattr(f"{projects.__name__}.demand_manage", demand)


@on_both
def test_the_same_request_is_answered_the_same_and_another_is_refused(service: Service) -> None:
    first, second = send(service), send(service)
    assert (first.status_code, second.status_code) == (201, 201)
    assert (first.content, "Idempotency-Replayed" in first.headers) == (second.content, False)
    assert second.headers["Idempotency-Replayed"] == "true"
    other = send(service, "else")
    assert (other.status_code, other.json()["errors"][0]["field"]) == (
        422,
        "header.idempotency-key",
    )
    # A key is its caller's own, and of one address.
    assert send(service, "lab", "engineer").status_code == 403
    assert send(service, path="/v1/projects").status_code == 201
    service.clock[0] += LASTS
    service.app.state.gate._remembered.clear()
    assert send(service).status_code == 409  # the name is taken: nobody remembers the key
    assert send(service, "new").status_code == 201  # a refusal gives it back
    assert workspaces(service) == ["default", "lab", "new"]


@on_both
def test_a_second_request_is_refused_while_the_first_is_under_way(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    before_writing(monkeypatch, lambda: told.append(send(service)))
    assert send(service).status_code == 201
    assert (told[0].status_code, told[0].json()["title"]) == (409, "Under way")
    assert told[0].headers["Retry-After"] == "1"


@on_both
@pytest.mark.parametrize("guarded", [True, False])
def test_of_two_that_hold_a_key_in_turn_one_writes(
    service: Service, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Tokens: a second one of the same name is no conflict by itself."""
    if not guarded:  # what the mark in the transaction is for
        monkeypatch.setattr(HeldKey, "mark_done", lambda *_: None)
    client = service.client("admin", **{"Idempotency-Key": "monday"})
    told: list[Any] = []

    def post() -> Any:
        return client.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]})

    left = [1]

    def listen(*args: Any) -> None:
        event.listen(*args)
        if left:
            left.pop()
            service.clock[0] += HELD
            told.append(post())

    monkeypatch.setattr(f"{repeats.__name__}.event", SimpleNamespace(listen=listen))
    told.append(post())
    assert [each.status_code for each in told] == [201, 409 if guarded else 201]


def test_a_process_that_dies_makes_nothing_twice(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(HeldKey, "end", lambda *_: None)
        assert send(service).status_code == 201
        assert send(service, "", path="/v1/projects").status_code == 422
    done = send(service)
    assert (done.status_code, "not kept" in done.json()["detail"]) == (409, True)
    assert send(service, "", path="/v1/projects").json()["title"] == "Under way"
    service.clock[0] += HELD  # what was not written may be, once nobody holds the key
    assert send(service, "", path="/v1/projects").status_code == 422
    assert send(service).status_code == 409


def test_a_secret_is_not_kept(service: Service) -> None:
    client = service.client("engineer", **{"Idempotency-Key": "monday"})
    first, second = (client.post("/v1/tokens", json={"name": "ci"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 409)
    with Session(service.engine) as session:
        [row] = session.exec(select(Repeat))
    assert (row.done, row.answer) == (True, None)
    assert "monday" not in repr(row)


def test_the_oldest_keys_of_a_caller_end(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST", 2)
    for number in range(4):
        client = service.client("admin", **{"Idempotency-Key": f"key-{number}"})
        assert client.post(PLACE, json={"name": f"w{number}"}).status_code == 201
        service.clock[0] += HELD
    with Session(service.engine) as session:
        assert len(session.exec(select(Repeat)).all()) == 2


def test_whatever_makes_something_takes_a_key(service: Service) -> None:
    client = service.client("public")
    paths = client.get("/v1/openapi.json").json()["paths"]
    makes = [
        {each["name"] for each in methods["post"].get("parameters", ())}
        for methods in paths.values()
        if "201" in methods.get("post", {}).get("responses", ())
    ]
    assert len(makes) == 9
    assert all("Idempotency-Key" in each for each in makes)
    # Without a token there is nobody whose key it is.
    told = service.client("public", **{"Idempotency-Key": "k"}).post("/v1/cases", json={})
    assert told.status_code == 422
