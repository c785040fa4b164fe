"""An operator by delegation is known over HTTP, from what models here came with. Of a trust root
the newest version counts, and no older."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlmodel import Session, select

from govray.governance.attestation import model_folder
from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.trust_state import TrustState
from govray.platform.store import tables
from tests.support.delegating import Delegating, uploaded
from tests.support.library import SUPPLIERS
from tests.support.people import Service, serve_models
from tests.support.world import AT


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
    model = world.verify(folder)
    assert model.signer == "night-shift"
    twice = [model, model]  # again changes nothing
    place = tmp_path_factory.mktemp("store")
    with serve_models(place, world.root, twice, public=True, **SUPPLIERS) as running:
        yield running


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


@pytest.mark.parametrize("delegated", [False, True])
def test_a_key_that_a_newer_version_withdraws_does_not_pass_under_the_older(
    tmp_path: Path, delegated: bool
) -> None:
    world = Delegating()
    signer = world.night if delegated else world.keys.operator
    folder = world.deploy(tmp_path / "model", operator=signer)
    envelope = (folder / model_folder.ATTESTATION).read_bytes()
    models = [world.verify(folder)]
    with serve_models(tmp_path, world.root, models, public=True, **SUPPLIERS) as service:
        # The control: under the only version it passes, for everyone.
        for kind in ("admin", "supplier", "public"):
            assert uploaded(service, kind, envelope)["outcome"] == "partlyChecked"
        world.keys.operator = LocalSigner.generate()
        newer = TrustState.load(root := world.sign_root(version=2), at=AT)
        named = {"name": newer.root.name, "version": newer.root.version}
        with Session(service.engine) as session:  # as the indexing of a model under it does
            session.add(tables.TrustRootRow(digest=newer.digest, envelope=root, **named))
            session.commit()
        for kind in ("admin", "supplier", "public"):
            told = uploaded(service, kind, envelope)
            assert (told["outcome"], told["steps"][1]["status"]) == ("failed", "failed")
