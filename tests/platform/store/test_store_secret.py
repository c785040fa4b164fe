"""The store knows its secret again: a wrong or missing one is said, not answered over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session

from govray.cli import main
from govray.errors import Refused, UsageError
from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.store import store_secret
from govray.platform.store.database import open_store
from govray.platform.store.model_index import index_model
from govray.platform.store.store_secret import (
    KEY_ENV,
    fingerprint,
    indexing_key,
    load_key,
    recorded,
)
from tests.support.people import make_tokens
from tests.support.shelf_of_models import made_once

RIGHT, WRONG = bytes(range(32)), bytes(32)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a store, its secret in a file that ``GOVRAY_STORE_KEY`` names."""
    monkeypatch.setenv(KEY_ENV, str(tmp_path / "secret"))
    write(tmp_path / "secret", RIGHT)
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = open_store(url, create=True)
    yield engine
    engine.dispose()


def write(path: Path, key: bytes) -> None:
    path.write_bytes(key)
    path.chmod(0o600)


def index_one(engine: Engine, key: bytes) -> None:
    shelf = made_once()
    with Session(engine) as session:
        index_model(session, shelf.verified("first"), trust_root=shelf.root, key=key)
        session.commit()


def test_nothing_is_indexed_under_another_secret(engine: Engine) -> None:
    index_one(engine, RIGHT)
    with pytest.raises(Refused, match="not the secret that the store is indexed under"):
        index_one(engine, WRONG)


def test_a_missing_secret_is_not_made_anew(engine: Engine, url: str, tmp_path: Path) -> None:
    index_one(engine, RIGHT)
    (tmp_path / "secret").unlink()
    with Session(engine) as session, pytest.raises(UsageError, match="secret is missing"):
        indexing_key(session, url)
    assert not (tmp_path / "secret").exists()


def asked(url: str) -> tuple[dict[str, object], int]:
    """What health says, and the status of a search for a record; the probe agrees with them."""
    app = create_app(Settings(store=url))
    try:
        token = make_tokens(app.state.engine, "acme-legal", "umbrella")["admin"]
        with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as client:
            health = client.get("/v1/health").json()
            search = client.post("/v1/records:search", json={"text": "acme/0/0"})
            ready = client.get("/v1/ready").status_code == 200
            assert ready == (health["status"] == "ok")
            return health, search.status_code
    finally:
        app.state.engine.dispose()


def test_health_says_that_it_is_missing_and_searches_are_refused(
    engine: Engine, url: str, tmp_path: Path
) -> None:
    index_one(engine, RIGHT)
    (tmp_path / "secret").unlink()
    health, status = asked(url)
    assert health["status"] == "incomplete"
    assert "the store's secret" in str(health["missing"])
    assert str(tmp_path) not in json.dumps(health)
    assert status == 503


def test_without_the_check_a_record_that_was_used_is_not_found(
    engine: Engine, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what the check is for."""
    index_one(engine, RIGHT)
    write(tmp_path / "secret", WRONG)
    monkeypatch.setattr(store_secret, "recorded", lambda _: None)
    health, status = asked(url)
    assert (health["status"], status) == ("ok", 200)


def test_a_rebuild_takes_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(KEY_ENV, raising=False)
    store = "sqlite:///govray.db"
    shelf = made_once()
    root = tmp_path / "root.json"
    root.write_bytes(shelf.root)
    words = ["--trust-root", str(root), "--store", store]
    model = str(shelf.verified("first").path)
    assert main(["model", "register", model, "--name", "gpt", "--version", "1.0.0", *words]) == 0
    secret = tmp_path / "govray.db.key"
    lost = secret.read_bytes()
    secret.unlink()
    (tmp_path / "runs").mkdir()
    assert main(["store", "index", "runs", *words]) == 2
    assert not secret.exists()
    assert main(["store", "rebuild", "runs", *words]) == 0
    assert secret.read_bytes() != lost
    with Session(engine := open_store(store)) as session:
        assert recorded(session) == fingerprint(load_key(store))
    engine.dispose()
