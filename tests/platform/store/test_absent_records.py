"""A model whose records are not at hand is indexed; answers say that they were not searched."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session, select

from govray.governance.verify.verifier import VerifiedModel, verify
from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.store import tables
from govray.platform.store.model_index import index_model
from govray.platform.store.store_secret import KEY_ENV
from tests.support.world import AT, World

KEY = bytes(32)


def index(store: Engine, world: World, model: VerifiedModel) -> None:
    with Session(store) as session:
        index_model(session, model, trust_root=world.root, key=KEY, secrets=world.secrets)
        session.commit()


def counts(store: Engine) -> tuple[int, int, int]:
    with Session(store) as session:
        found = (tables.Attestation, tables.Record, tables.AbsentRecords)
        one, two, three = (len(session.exec(select(each)).all()) for each in found)
        return one, two, three


def test_records_come_when_they_are_at_hand(store: Engine, tmp_path: Path) -> None:
    world = World(steps=3)
    folder = world.deploy(tmp_path / "model")
    summary = verify(folder, trust_root=world.root, at=AT)
    full = verify(folder, trust_root=world.root, at=AT, records=world.files.read)
    for _ in range(2):
        index(store, world, summary)
        assert counts(store) == (1, 0, 1)
    records = sum(len(part) for parts in world.records.values() for part in parts)
    for model in (full, full, summary):  # once there, they stay
        index(store, world, model)
        assert counts(store) == (1, records, 0)


def test_the_service_names_what_was_not_searched(
    store: Engine, store_url: str, tmp_path: Path, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    secret = tmp_path / "secret"
    secret.write_bytes(KEY)
    secret.chmod(0o600)
    monkeypatch.setenv(KEY_ENV, str(secret))
    world = World(steps=3)
    folder = world.deploy(tmp_path / "model")
    sha256 = world.records["alpha"][0][0][0]

    def answer() -> tuple[bool, list[str]]:
        with TestClient(create_app(Settings(store=store_url, auth=False))) as client:
            told = client.get(f"/v1/records/{sha256}?proofs=0").json()
            return told["found"], told["closed"]

    index(store, world, verify(folder, trust_root=world.root, at=AT))
    assert answer() == (False, ["acme", "alpha", "beta", "gamma"])
    index(store, world, verify(folder, trust_root=world.root, at=AT, records=world.files.read))
    assert answer() == (True, [])
    assert hashlib.sha256(b"alpha/0/0").hexdigest() == sha256
