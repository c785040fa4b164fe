"""A store opens at its own revision, or says what to do."""

from __future__ import annotations

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError, StatementError
from sqlmodel import Session, select

from govray.errors import GovrayError, InfrastructureFailed, Refused, UsageError
from govray.platform.store.database import begin_writing, connect, open_store, parse_url
from govray.platform.store.store_secret import load_key
from govray.platform.store.tables import Experiment, Model, Token
from tests.support.databases import on_both


def model(name: str, **changes: object) -> Model:
    return Model(name=name, labels={}, created="2026-11-21T00:00:00Z", user="ada", **changes)


@on_both
def test_a_row_comes_back(store: Engine) -> None:
    with Session(store) as session:
        session.add(model("cat", description="é\u0001 %"))
        session.commit()
    with Session(store) as session:
        assert session.exec(select(Model)).one().description == "é\u0001 %"


def test_create_makes_an_empty_database_a_store(empty_url: str) -> None:
    with pytest.raises(UsageError, match="govray store upgrade"):
        open_store(empty_url)
    open_store(empty_url, create=True).dispose()
    open_store(empty_url, create=True).dispose()
    open_store(empty_url).dispose()


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


@on_both
def test_a_reference_to_nothing_is_refused(store: Engine) -> None:
    token = Token(
        id="t", user="nobody", secret_sha256="0" * 64, scopes=[], name="", created="", expires=""
    )
    with Session(store) as session:
        session.add(token)
        with pytest.raises(IntegrityError):
            session.commit()


@on_both
def test_a_text_that_is_no_state_is_refused(store: Engine) -> None:
    columns = dict.fromkeys(("id", "name", "kind", "project", "user", "storage", "started"), "x")
    with Session(store) as session:
        session.add(Experiment(**columns, state="RUNNING", config={}))
        with pytest.raises(StatementError):
            session.commit()
    with store.begin() as connection:
        connection.execute(
            text(
                'INSERT INTO experiment (id, name, kind, state, project, "user", storage, config,'
                " started) VALUES ('x', 'x', 'run', 'RUNNING', '', '', '', '{}', '')"
            )
        )
    with Session(store) as session, pytest.raises(LookupError):
        session.exec(select(Experiment)).one()


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
                row = session.exec(select(Model)).one()
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
        assert session.exec(select(Model)).one().description == ("10" if alone else "1")


@pytest.mark.parametrize(
    "url",
    ["", "govray.db", "sqlite://", "sqlite:///:memory:", "mysql://ada:secret@db/x", "a://b:c"],
)
def test_what_is_no_store_is_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_store(url, create=True)
    assert "secret" not in str(refused.value)


def test_a_server_that_is_away_is_said_without_the_password() -> None:
    with pytest.raises(InfrastructureFailed) as failed:
        open_store("postgresql://ada:secret@127.0.0.1:1/x?connect_timeout=2")
    assert "secret" not in str(failed.value)
    assert "127.0.0.1" in str(failed.value)


def test_a_folder_that_is_absent_and_a_file_that_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(GovrayError, match="absent"):
        open_store(f"sqlite:///{tmp_path}/absent/x.db", create=True)
    (tmp_path / "x.db").write_text("not a database, and long enough to be taken for one" * 99)
    with pytest.raises(GovrayError, match=r"x\.db"):
        open_store(f"sqlite:///{tmp_path}/x.db")


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


def test_an_empty_secret_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'govray.db'}"
    (tmp_path / "govray.db.key").touch(0o600)
    with pytest.raises(Refused, match="not 32 bytes") as caught:
        load_key(url)
    assert "backup" in str(caught.value.do)
