"""An operator by delegation is known over HTTP, from what models here came with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session, select

from govray.governance.attestation import model_folder
from govray.governance.formats.keys import LocalSigner
from govray.platform.store import tables
from govray.platform.store.database import open_store
from govray.platform.store.model_index import index_model
from tests.support.delegating import DSSE, Delegating
from tests.support.library import SUPPLIERS
from tests.support.people import Service, serve


@pytest.fixture(scope="module")
def world() -> Delegating:
    return Delegating()


@pytest.fixture(scope="module")
def folder(world: Delegating, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.deploy(tmp_path_factory.mktemp("model") / "model", operator=world.night)


@pytest.fixture(scope="module")
def service(
    world: Delegating, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'store.db'}"
    engine = open_store(url, create=True)
    model = world.verify(folder)
    assert model.signer == "night-shift"
    with Session(engine) as session:
        for _ in range(2):  # again changes nothing
            index_model(session, model, trust_root=world.root, key=b"k" * 32, public=True)
        session.commit()
    engine.dispose()
    with serve(url, **SUPPLIERS) as running:
        yield running


def uploaded(service: Service, kind: str, data: bytes) -> dict[str, Any]:
    answer = service.client(kind, **DSSE).post("/v1/attestations:verify", content=data)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("kind", ["admin", "supplier", "public"])
def test_its_signature_passes(service: Service, folder: Path, kind: str) -> None:
    told = uploaded(service, kind, (folder / model_folder.ATTESTATION).read_bytes())
    assert (told["outcome"], told["signer"]) == ("partlyChecked", "night-shift")
    assert [each["status"] for each in told["steps"][:3]] == ["passed"] * 3


def test_the_store_has_the_delegations_as_they_were_signed(
    service: Service, world: Delegating, folder: Path
) -> None:
    with Session(service.engine) as session:
        (row,) = session.exec(select(tables.Delegations)).all()
    assert row.lines == (folder / model_folder.DELEGATIONS).read_bytes()
    assert row.lines.split(b"\n")[:-1] == world.delegations


def test_without_the_delegations_it_is_nobody(service: Service, folder: Path) -> None:
    """Negative control: what the service knew before."""
    with Session(service.engine) as session:
        (row,) = session.exec(select(tables.Delegations)).all()
        kept = row.model_dump()
        session.delete(row)
        session.commit()
    try:
        told = uploaded(service, "admin", (folder / model_folder.ATTESTATION).read_bytes())
        assert (told["outcome"], told["steps"][1]["status"]) == ("failed", "failed")
    finally:
        with Session(service.engine) as session:
            session.add(tables.Delegations(**kept))
            session.commit()


def test_a_delegation_of_a_stranger_helps_nobody(
    service: Service, world: Delegating, tmp_path: Path
) -> None:
    stranger = LocalSigner.generate()
    path = world.deploy(tmp_path / "model", operator=stranger)
    told = uploaded(service, "admin", (path / model_folder.ATTESTATION).read_bytes())
    assert told["outcome"] == "failed"
