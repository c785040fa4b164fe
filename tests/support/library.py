"""A service over the shelf of models: a store on disk, tiles, versions, a public model, people."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from sqlmodel import Session

from govray.governance.attestation import model_folder
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.service.http.settings import CaseSettings
from govray.platform.store.database import open_store
from govray.platform.store.store_secret import KEY_ENV
from govray.platform.store.tables import LedgerRow, ModelRow, ModelVersion
from govray.platform.store.tile_storage import TileFolder
from govray.platform.store.tiles import write_tiles
from tests.support.people import Service, serve
from tests.support.shelf_of_models import KEY, Shelf, for_this_run, made_once
from tests.support.world import World

SUPPLIERS = {"supplier": "acme-legal", "other": "archive"}
CREATED = "2026-11-20T00:00:00Z"


@dataclass
class Library:
    service: Service
    shelf: Shelf
    tiles: Path

    def model(self, name: str) -> VerifiedModel:
        return self.shelf.verified(name)

    def digest(self, name: str) -> str:
        return self.model(name).digest

    def envelope(self, name: str) -> bytes:
        return (self.shelf.models[name] / model_folder.ATTESTATION).read_bytes()

    def get(self, kind: str, path: str, **headers: str):  # type: ignore[no-untyped-def]
        return self.service.client(kind, **headers).get(f"/v1{path}")

    def post(self, kind: str, path: str, **request: object):  # type: ignore[no-untyped-def]
        return self.service.client(kind).post(f"/v1{path}", **request)  # type: ignore[arg-type]

    def record(self, corpus: str, number: int) -> str:
        return self.shelf.sha256(corpus, number)


@cache
def indexed() -> Path:
    """A folder with the store, its secret and the tiles, made once for a run of the tests."""
    folder = for_this_run("library")
    url = f"sqlite:///{folder / 'store.db'}"
    engine = open_store(url, create=True)
    secret = folder / "store.key"
    secret.touch(0o600)
    secret.write_bytes(KEY)
    shelf = made_once()
    with Session(engine) as session:
        shelf.index(session)
        shelf.index(session, "narrow", public=True)
        for name in shelf.models:
            write(shelf.verified(name), folder / "tiles" / name)
            ledger = session.get_one(LedgerRow, f"run-{name}")
            ledger.tiles = str(folder / "tiles" / name)
            session.add(ledger)
            session.add(ModelRow(name=name, labels={}, created=CREATED, user="engineer"))
            session.flush()
            session.add(
                ModelVersion(
                    model=name,
                    version="1.0.0",
                    major=1,
                    minor=0,
                    patch=0,
                    attestation=shelf.verified(name).digest,
                    stage="none",
                    labels={},
                    created=CREATED,
                    user="engineer",
                )
            )
        session.commit()
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()
    return folder


@contextmanager
def library(folder: Path, *, cases: bool = False) -> Iterator[Library]:
    """A service over all models of the shelf, in a copy of the store below ``folder``.

    Models and tiles are those of all tests: whoever changes one puts it back.
    """
    made, shelf = indexed(), made_once()
    shutil.copy(made / "store.db", folder / "store.db")
    url = f"sqlite:///{folder / 'store.db'}"
    desk = CaseSettings(key=str(operator_key(folder, shelf.world)), per_day=1000) if cases else None
    with pytest.MonkeyPatch.context() as patch, serve(url, cases=desk, **SUPPLIERS) as service:
        patch.setenv(KEY_ENV, str(made / "store.key"))
        yield Library(service, shelf, made / "tiles")


def operator_key(folder: Path, world: World) -> Path:
    """The operator's key, as a file that only its owner reads."""
    path = folder / "operator.pem"
    path.touch(0o600)
    path.write_bytes(world.keys.operator.to_pem())
    return path


def write(model: VerifiedModel, folder: Path) -> None:
    """The tiles of a model's ledger."""
    checkpoint = (model.path / model_folder.CHECKPOINT).read_bytes()
    write_tiles(TileFolder(folder), (leaf.line for leaf in model.ledger.leaves), checkpoint)
