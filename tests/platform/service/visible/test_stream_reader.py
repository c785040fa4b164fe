"""A stream ends soon after its reader may no longer read: by token, session, account and role."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import Session

from govray.platform.service.identity import browser_sessions, tokens
from govray.platform.service.identity.access import REMEMBERED
from govray.platform.service.identity.session_cookie import COOKIE
from govray.platform.service.routes import live_metrics, logs
from govray.platform.service.visible import stream_reader
from govray.platform.store import role_bindings
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from govray.platform.store.role_bindings import Grant
from govray.platform.store.states import RunState
from govray.platform.store.tables import UserRow
from tests.support.people import NOW, Service, begin_session, serve
from tests.support.runs import add_runs

BY = ChangedBy(user="admin", at="2026-11-12T12:00:00Z")
POLLS = 40
STREAMS = ("metrics/stream", "logs/driver-0.log/stream")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path_factory.mktemp('streams') / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url) as service:
        add_runs(service.engine)
        yield service


class Reading:
    """Somebody who reads a stream, and what takes that away."""

    def __init__(self, service: Service, how: str) -> None:
        self._how, self._engine = how, service.engine
        with Session(self._engine) as session:
            role = "member" if how == "role" else "auditor"
            self._user = f"{how}-{len(service.tokens)}"
            self._token = tokens.new(session, self._user, role=role, at=NOW - timedelta(days=1))
            if how == "role":
                grant = Grant(
                    subject_kind="user",
                    subject=self._user,
                    role="viewer",
                    scope="project",
                    place="default",
                )
                self._binding = role_bindings.bind(session, grant, by=BY).id
            session.commit()
        service.tokens[self._user] = self._token
        self.client = service.client("public" if how == "session" else self._user)
        if how == "session":
            self._secret = begin_session(self._engine, self._token, NOW)
            self.client.cookies.set(COOKIE, self._secret)

    def ends(self) -> None:
        with Session(self._engine) as session:
            match self._how:
                case "token":
                    tokens.revoke(session, self._token, at=NOW)
                case "session":
                    browser_sessions.end(session, self._secret)
                case "account":
                    session.get_one(UserRow, self._user).disabled = True
                case "role":
                    role_bindings.unbind(session, self._binding, by=BY)
            session.commit()


@pytest.mark.parametrize("address", STREAMS)
@pytest.mark.parametrize("how", ["token", "session", "account", "role"])
@pytest.mark.parametrize("defended", [True, False])
def test_a_stream_ends_when_its_reader_may_read_no_more(
    watched: Service,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    how: str,
    defended: bool,
) -> None:
    watched.clock[0] = NOW
    reading, polls = Reading(watched, how), 0

    def poll(*_: Any) -> Any:
        nonlocal polls
        polls += 1
        if polls == 3:
            reading.ends()
            watched.clock[0] += timedelta(seconds=REMEMBERED)
        going = polls < POLLS
        if address.startswith("metrics"):
            return None if going else RunState.KILLED, []
        return going, None

    for module in (live_metrics, logs):
        monkeypatch.setattr(module, "_poll", poll)
        monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(stream_reader, "RECHECK_SECONDS", 0.0 if defended else 600.0)
    answer = reading.client.get(f"/v1/runs/going/{address}")
    assert answer.status_code == 200
    # With the defence off the stream goes on to the run's own end.
    assert (polls, "event: end" in answer.text) == ((3, False) if defended else (POLLS, True))
    assert watched.app.state.streams.open == 0
    assert reading.client.get(f"/v1/runs/going/{address}").status_code in (401, 403)
