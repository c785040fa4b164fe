"""The lineage says what the attestation says, and a supplier's view nothing of anybody else."""

from __future__ import annotations

import pytest

from govray.governance.attestation.model_attestation import Attestation, Removal
from govray.governance.attestation.selection_taint import Selection
from govray.governance.record.ancestry import Ancestor
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.store.lineage import Lineage, encode, lineage, of_corpora
from tests.support.world import EXECUTION, World

OTHERS = ("alpha", "beta", "gamma", "delta")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VerifiedModel:
    world = World()
    folder = world.deploy(tmp_path_factory.mktemp("lineage") / "model")
    return world.verify(folder)


@pytest.fixture(scope="module")
def whole(model: VerifiedModel) -> Lineage:
    return lineage(model.attestation, model.digest, model.replayed_by)


@pytest.fixture(scope="module")
def storied(model: VerifiedModel) -> Lineage:
    """The lineage of a model with everything that an attestation may say."""
    attestation: Attestation = model.attestation
    run = attestation.run.model_copy(
        update={
            "initial_weights": {"beta-first/model.safetensors": "sha256:" + "1" * 64},
            "ancestry": (Ancestor(run="beta-run", step=1, size=1, root="sha256:" + "2" * 64),),
        }
    )
    taint = tuple(
        each.model_copy(update={"transitive": (*each.transitive, "beta-elder", "unknown")})
        for each in attestation.taint
    )
    changed = attestation.model_copy(
        update={
            "run": run,
            "execution": EXECUTION.model_copy(
                update={
                    "submission": "s-1",
                    "user": "beta-user",
                    "project": "beta",
                    "submitted": "2026-11-10T08:00:00Z",
                }
            ),
            "taint": taint,
            "pretrained": {"block.0": ("acme", "beta-elder", "unknown")},
            "removals": (Removal(adapter="acme", removed="2026-11-11T00:00:00Z"),),
            "selection_taint": (
                Selection(search="s", metric="loss", corpora=("acme", "alpha", "beta", "gamma")),
                Selection(search="beta-search", metric="loss", corpora=("beta",)),
            ),
        }
    )
    return lineage(changed, model.digest, model.replayed_by)


def test_every_cell_is_the_attestations(model: VerifiedModel, whole: Lineage) -> None:
    assert [row.corpus for row in whole.corpora] == ["acme", "alpha", "beta", "gamma"]
    taint = {each.group: each for each in model.attestation.taint}
    for row in whole.corpora:
        assert [cell.group for cell in row.cells] == [each.group for each in whole.groups]
        for cell in row.cells:
            told = model.coverage[row.corpus, cell.group]
            assert cell.tokens == told.tokens
            assert cell.gradient_norm_share == told.gradient_norm_share
            assert cell.direct == (row.corpus in taint[cell.group].direct)
            assert cell.transitive == (row.corpus in taint[cell.group].transitive)
            assert cell.level == model.attestation.levels.get(row.corpus, {}).get(cell.group)
            assert (cell.weight is None) == (cell.level is not None)


def test_direct_and_transitive_are_told_apart(whole: Lineage) -> None:
    gamma = next(row for row in whole.corpora if row.corpus == "gamma")
    cells = {cell.group: cell for cell in gamma.cells}
    assert (cells["embedding"].direct, cells["embedding"].transitive) == (False, True)
    assert (cells["final_norm"].direct, cells["final_norm"].weight) == (True, 0.3)
    assert (cells["embedding"].tokens, cells["embedding"].level) == (0, 1)


def test_what_no_run_of_ours_brought_is_shown_with_the_group(storied: Lineage) -> None:
    groups = {each.group: each for each in storied.groups}
    assert groups["block.0"].pretrained == ("acme", "beta-elder", "unknown")
    assert groups["head"].transitive == ("beta-elder", "unknown")
    assert groups["adapter:acme"].removed == "2026-11-11T00:00:00Z"


def test_a_suppliers_view_names_nobody_else(storied: Lineage) -> None:
    own = of_corpora(storied, {"acme"})
    text = encode(own).decode()
    assert [row.corpus for row in own.corpora] == ["acme"]
    assert [each.group for each in own.groups][-1] == "adapter:acme"
    assert not [name for name in OTHERS if name in text]
    # The control: of the whole document all of these are told.
    assert not [name for name in OTHERS if name not in encode(storied).decode()]


def test_adapters_of_others_are_left_out(storied: Lineage) -> None:
    own = of_corpora(storied, {"beta"})
    assert "acme" not in encode(own).decode()
    assert [c.group for c in own.corpora[0].cells] == [g.group for g in own.groups]
    assert own.removals == ()
