"""A store opens at its own revision, or says what to do."""

from __future__ import annotations

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlmodel import Session, select

from govray.errors import Refused, UsageError
from govray.platform.store.database import begin_writing, connect, open_store, parse_url
from govray.platform.store.store_secret import load_key
from govray.platform.store.tables import ModelRow
from tests.support.databases import Server, on_both


def model(name: str, **changes: object) -> ModelRow:
    return ModelRow(name=name, labels={}, created="2026-11-21T00:00:00Z", user="ada", **changes)


@on_both
@pytest.mark.parametrize("revision", ["0000", None])
def test_another_revision_is_refused(store_url: str, revision: str | None) -> None:
    engine = connect(parse_url(store_url))
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
        if revision:
            connection.execute(text("INSERT INTO alembic_version VALUES (:r)"), {"r": revision})
    engine.dispose()
    for create in (False, True):
        with pytest.raises(Refused, match="govray store upgrade"):
            open_store(store_url, create=create)


def test_a_database_that_is_not_in_utf8_is_refused(postgres: Server) -> None:
    url = postgres.new("template0", encoding="SQL_ASCII")
    with pytest.raises(Refused, match="SQL_ASCII"):
        open_store(url, create=True)


@on_both
@pytest.mark.parametrize("alone", [True, False])
def test_writers_that_read_first_lose_nothing(store: Engine, alone: bool) -> None:
    """Without `begin_writing` both read the same and one addition is lost: the control."""
    with Session(store) as session:
        session.add(model("n", description="0"))
        session.commit()
    have_read = threading.Barrier(2)

    def add() -> None:
        for _ in range(1 if not alone else 5):
            with Session(store) as session:
                if alone:
                    begin_writing(session)
                row = session.exec(select(ModelRow)).one()
                number = int(row.description)
                if not alone:
                    have_read.wait(30)
                row.description = str(number + 1)
                session.commit()

    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with Session(store) as session:
        assert session.exec(select(ModelRow)).one().description == ("10" if alone else "1")


@pytest.mark.parametrize(
    "url",
    ["", "govray.db", "sqlite://", "sqlite:///:memory:", "mysql://ada:secret@db/x", "a://b:c"],
)
def test_what_is_no_store_is_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_store(url, create=True)
    assert "secret" not in str(refused.value)


def test_the_secret_is_made_once_and_for_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOVRAY_STORE_KEY", raising=False)
    url = f"sqlite:///{tmp_path}/govray.db"
    key = load_key(url)
    assert load_key(url) == key
    assert len(key) == 32
    path = tmp_path / "govray.db.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(Refused, match="others"):
        load_key(url)
    path.chmod(0o600)
    path.write_bytes(key[:-1])
    with pytest.raises(Refused, match="32 bytes"):
        load_key(url)
    with pytest.raises(UsageError, match="GOVRAY_STORE_KEY"):
        load_key("postgresql://x@y/z")
    monkeypatch.setenv("GOVRAY_STORE_KEY", str(tmp_path / "other"))
    assert load_key("postgresql://x@y/z") != key


def test_of_two_that_make_the_secret_at_once_one_stays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'govray.db'}"
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(load_key, [url] * 32))) == 1
