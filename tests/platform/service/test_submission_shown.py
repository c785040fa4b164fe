"""Who submitted a model's run: what its page and its lineage say, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlmodel import Session

from govray.governance.attestation.model_attestation import Attestation
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.store.database import open_store
from govray.platform.store.model_index import index_model
from govray.platform.store.store_secret import KEY_ENV
from tests.support.people import Service, serve
from tests.support.shelf_of_models import KEY
from tests.support.world import World

BY = {
    "submission": "s-1",
    "user": "<b>eve</b>\u202e",
    "project": "p&q",
    "submitted": "2026-11-10T08:00:00Z",
}
SHOWN = "submitted by &lt;b&gt;eve&lt;/b&gt;\u202e, project p&amp;q, as the operator states"


def submitted(attestation: Attestation) -> Attestation:
    execution = attestation.execution.model_copy(update=BY)
    return attestation.model_copy(update={"execution": execution})


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def models(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, VerifiedModel]:
    folder = tmp_path_factory.mktemp("models")
    made = {
        "asked": world.deploy(folder / "asked", run="run-asked", attestation=submitted),
        "plain": world.deploy(folder / "plain", run="run-plain"),
    }
    return {name: world.verify(path) for name, path in made.items()}


@pytest.fixture(scope="module")
def service(
    world: World, models: dict[str, VerifiedModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("store")
    (secret := folder / "store.key").touch(0o600)
    secret.write_bytes(KEY)
    url = f"sqlite:///{folder / 'store.db'}"
    engine = open_store(url, create=True)
    with Session(engine) as session:
        for model in models.values():
            index_model(session, model, trust_root=world.root, key=KEY, folder=str(model.path))
        session.commit()
    engine.dispose()
    with pytest.MonkeyPatch.context() as patch, serve(url) as served:
        patch.setenv(KEY_ENV, str(secret))
        yield served


def path_of(model: VerifiedModel) -> str:
    return f"/attestations/{model.digest.removeprefix('sha256:')}"


def test_the_page_says_who(models: dict[str, VerifiedModel], service: Service) -> None:
    client = service.client("engineer", accept="text/html")
    page = client.get(path_of(models["asked"])).text
    assert SHOWN in page
    assert "<b>eve" not in page
    assert "Submitted" not in client.get(path_of(models["plain"])).text  # the control


def test_the_lineage_says_who(models: dict[str, VerifiedModel], service: Service) -> None:
    """Not to suppliers: `tests/platform/store/test_lineage.py` has what is left for them."""
    client = service.client("engineer")
    asked, plain = (client.get(f"/v1{path_of(each)}/lineage").json() for each in models.values())
    assert BY.items() <= asked["execution"].items()
    assert not BY.keys() & plain["execution"].keys()
