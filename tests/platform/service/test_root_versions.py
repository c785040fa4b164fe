"""An uploaded attestation is checked against the newest version of a trust root, and no older."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

from govray.governance.attestation import model_folder
from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.trust_state import TrustState
from govray.platform.store import tables
from govray.platform.store.database import open_store
from govray.platform.store.model_index import index_model
from tests.support.delegating import DSSE, Delegating
from tests.support.library import SUPPLIERS
from tests.support.people import Service, serve
from tests.support.world import AT

EVERYONE = ["admin", "supplier", "public"]


@pytest.fixture
def world() -> Delegating:
    return Delegating()


@pytest.fixture(params=["root's own", "by delegation"])
def envelope(
    request: pytest.FixtureRequest, world: Delegating, tmp_path: Path
) -> tuple[Path, bytes]:
    """A model that an operator signed, and its attestation."""
    signer = world.night if request.param == "by delegation" else world.keys.operator
    folder = world.deploy(tmp_path / "model", operator=signer)
    return folder, (folder / model_folder.ATTESTATION).read_bytes()


@pytest.fixture
def service(world: Delegating, envelope: tuple[Path, bytes], tmp_path: Path) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = open_store(url, create=True)
    model = world.verify(envelope[0])
    with Session(engine) as session:
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


def keep(service: Service, root: bytes) -> str:
    """Put a root into the store, as the indexing of a model under it does; its digest."""
    trust = TrustState.load(root, at=AT)
    with Session(service.engine) as session:
        row = tables.TrustRoot(
            digest=trust.digest, name=trust.root.name, version=trust.root.version, envelope=root
        )
        session.add(row)
        session.commit()
    return trust.digest


def test_a_key_that_a_newer_version_withdraws_does_not_pass_under_the_older(
    service: Service, world: Delegating, envelope: tuple[Path, bytes]
) -> None:
    # The control: under the only version it passes, for everyone.
    for kind in EVERYONE:
        assert uploaded(service, kind, envelope[1])["outcome"] == "partlyChecked"
    withdrawn, world.keys.operator = world.keys.operator, LocalSigner.generate()
    keep(service, world.sign_root(version=2))
    world.keys.operator = withdrawn
    for kind in EVERYONE:
        told = uploaded(service, kind, envelope[1])
        assert (told["outcome"], told["steps"][1]["status"]) == ("failed", "failed")
