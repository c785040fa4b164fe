"""PostgreSQL ends what the service asks when its time is up; what indexes has no such limit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from govray.platform.service.http.problems import of
from govray.platform.store.database import open_store
from tests.support.databases import Server

LONG = text("SELECT pg_sleep(20)")
RUNNING = text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'")


@pytest.fixture(scope="module")
def url(postgres: Server) -> str:
    return postgres.new("made")


@pytest.fixture(scope="module")
def unlimited(url: str) -> Iterator[Engine]:
    engine = open_store(url)
    yield engine
    engine.dispose()


def running(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(RUNNING).scalar_one())


def test_a_query_past_its_limit_does_not_run_on(url: str, unlimited: Engine) -> None:
    engine = open_store(url, statement_limit=0.3)
    with engine.connect() as connection, pytest.raises(OperationalError) as caught:
        connection.execute(LONG)
    assert running(unlimited) == 0
    problem = of(caught.value)
    assert problem is not None
    assert (problem.status_code, problem.title) == (503, "Too slow")
    # A rollback of the first transaction does not take the limit back.
    with engine.connect() as connection, pytest.raises(OperationalError):
        connection.execute(LONG)
    engine.dispose()


def test_without_it_the_query_runs_on(unlimited: Engine) -> None:
    """Negative control, and what the indexer needs."""
    with ThreadPoolExecutor(1) as threads:

        def ask() -> None:
            with unlimited.connect() as connection:
                connection.execute(text("SELECT pg_sleep(0.6)"))

        began = time.monotonic()
        asked = threads.submit(ask)
        while not running(unlimited):
            assert not asked.done()
        asked.result()
        assert time.monotonic() - began >= 0.6
