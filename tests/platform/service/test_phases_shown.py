"""A model whose policy has phases: what its page draws, and what the service explains."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from sqlmodel import Session

from govray.governance.policy.policy_yaml import read_policy
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.store.database import open_store
from govray.platform.store.model_index import index_model
from govray.platform.store.store_secret import KEY_ENV
from tests.support.people import Service, serve
from tests.support.shelf_of_models import KEY
from tests.support.world import POLICY, World

UPPER = '{layers: {"blocks[0.5:]": 1, final_norm: 0.3, head: 1}}'
PHASED = f"{UPPER[:-1]}, phases: [{{from_step: 2, layers: {{all: 0.5}}}}]}}"


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    assert UPPER in POLICY
    policy = read_policy(POLICY.replace(UPPER, PHASED))
    made.policy = policy.seal(made.keys.compliance)
    return made


@pytest.fixture(scope="module")
def model(world: World, tmp_path_factory: pytest.TempPathFactory) -> VerifiedModel:
    folder = world.deploy(tmp_path_factory.mktemp("phased") / "model")
    return world.verify(folder)


@pytest.fixture(scope="module")
def service(
    world: World, model: VerifiedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("store")
    (secret := folder / "store.key").touch(0o600)
    secret.write_bytes(KEY)
    url = f"sqlite:///{folder / 'store.db'}"
    engine = open_store(url, create=True)
    with Session(engine) as session:
        index_model(session, model, trust_root=world.root, key=KEY, folder=str(model.path))
        session.commit()
    engine.dispose()
    with pytest.MonkeyPatch.context() as patch, serve(url) as served:
        patch.setenv(KEY_ENV, str(secret))
        yield served


def test_the_page_names_the_steps_in_which_a_layer_was_closed(
    model: VerifiedModel, service: Service
) -> None:
    path = f"/attestations/{model.digest.removeprefix('sha256:')}"
    page = service.client("engineer", accept="text/html").get(path)
    assert page.status_code == 200
    table = page.text.partition('<table class="depth">')[2].partition("</table>")[0]
    [row] = re.findall(r"upper_half <span.*?</tr>", table, re.S)
    cells = re.findall(r'<span class="say">(.*?)</td>', row, re.S)
    closed = "closed in steps 0–1"
    assert [closed in cell for cell in cells] == [True, True, False, False, False]
    assert table.count(closed) == 2  # in no other row
