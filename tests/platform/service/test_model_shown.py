"""A model whose policy has phases, and whose run was submitted: what page and lineage say."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from govray.governance.attestation.model_attestation import Attestation
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.verify.verifier import VerifiedModel
from tests.support.people import Service, serve_models
from tests.support.world import POLICY, World

UPPER = '{layers: {"blocks[0.5:]": 1, final_norm: 0.3, head: 1}}'
PHASED = f"{UPPER[:-1]}, phases: [{{from_step: 2, layers: {{all: 0.5}}}}]}}"
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
    made = World()
    assert UPPER in POLICY
    policy = read_policy(POLICY.replace(UPPER, PHASED))
    made.policy = policy.seal(made.keys.compliance)
    return made


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
    with serve_models(tmp_path_factory.mktemp("store"), world.root, models.values()) as served:
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


def test_the_page_names_the_steps_in_which_a_layer_was_closed(
    models: dict[str, VerifiedModel], service: Service
) -> None:
    page = service.client("engineer", accept="text/html").get(path_of(models["plain"]))
    assert page.status_code == 200
    table = page.text.partition('<table class="depth">')[2].partition("</table>")[0]
    [row] = re.findall(r"upper_half <span.*?</tr>", table, re.S)
    cells = re.findall(r'<span class="say">(.*?)</td>', row, re.S)
    closed = "closed in steps 0–1"
    assert [closed in cell for cell in cells] == [True, True, False, False, False]
    assert table.count(closed) == 2  # in no other row
