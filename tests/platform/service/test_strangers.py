"""What somebody without a token can make the service do is bounded: looks at the store, rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import event
from sqlmodel import Session, col, func, select

from govray.platform.service.http.limits import Buckets
from govray.platform.service.identity import audit_log
from govray.platform.service.identity.audit_log import Refusals
from govray.platform.store.database import open_store
from govray.platform.store.tables import AuditEntry
from tests.support.people import Service, serve

BURST = 5


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, rate=0.001, burst=BURST) as running:
        yield running


def looks(service: Service, count: int, **headers: str) -> tuple[int, list[int]]:
    """How many statements ``count`` requests with guessed tokens cost, and their statuses."""
    seen = []
    event.listen(service.engine, "before_cursor_execute", lambda *a: seen.append(a[2]))
    statuses = [
        service.client("public", Authorization=f"Bearer govr_{n:012x}_{'A' * 43}")
        .get("/v1/runs", headers=headers)
        .status_code
        for n in range(count)
    ]
    return sum("FROM token" in statement for statement in seen), statuses


def test_a_guess_costs_its_address_before_it_costs_a_query(service: Service) -> None:
    queries, statuses = looks(service, 4 * BURST)
    assert statuses == [401] * BURST + [429] * 3 * BURST
    assert queries == BURST


def test_without_that_each_guess_is_a_query(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Buckets, "take", lambda *_: None)
    queries, _ = looks(service, 4 * BURST)
    assert queries == 4 * BURST


def test_guesses_keep_nobody_out_who_was_let_in(service: Service) -> None:
    engineer = service.client("engineer")
    assert engineer.get("/v1/runs").status_code == 200
    looks(service, 2 * BURST)  # from the same address
    service.clock[0] += service.clock[0].resolution * 5_000_000  # what was remembered is looked up
    assert engineer.get("/v1/runs").status_code == 200


def refusals(app: FastAPI) -> int:
    with Session(app.state.engine) as session:
        return session.exec(select(func.count(col(AuditEntry.number)))).one()


def test_refusals_of_strangers_make_a_bounded_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "ANONYMOUS_BURST", 3)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    now = [0.0]
    with serve(url) as running:
        running.app.state.refusals = Refusals(running.engine, lambda: now[0])
        public = running.client("public")
        before = refusals(running.app)
        for _ in range(10):
            assert public.get("/v1/runs").status_code == 401
        assert refusals(running.app) - before == 3
        # Who has a token is recorded each time.
        supplier = running.client("supplier")
        for _ in range(5):
            assert supplier.get("/v1/audit").status_code == 403
        assert refusals(running.app) - before == 8
        # The next entry says how many there were.
        now[0] += 1.0
        public.get("/v1/runs")
        with Session(running.engine) as session:
            last = session.exec(
                select(AuditEntry).order_by(col(AuditEntry.number).desc()).limit(1)
            ).one()
        assert last.detail == {"status": 401, "unrecorded_before": 7}
