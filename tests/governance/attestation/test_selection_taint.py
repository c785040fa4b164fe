"""A model that a search chose says which corpora the choice depended on: all that were read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from govray.errors import Refused, VerificationFailed
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.attestation.selection_taint import (
    Selection,
    check_selection,
    selecting_corpora,
)
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.verify import ledger_step, plan_steps
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.world import AT, DIGEST, World


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def plain(world: World, tmp_path_factory: pytest.TempPathFactory) -> VerifiedModel:
    model = world.deploy(tmp_path_factory.mktemp("plain") / "model")
    return verify(model, trust_root=world.root, at=AT)


def selection(corpora: Sequence[str]) -> Selection:
    return Selection(search="s", metric="loss", statistic="composite", corpora=tuple(corpora))


def selected(world: World, folder: Path, *stated: Selection) -> Path:
    def say(attestation: Attestation) -> Attestation:
        return attestation.model_copy(update={"selection_taint": stated or None})

    return world.deploy(folder, attestation=say)


def test_a_selected_model_verifies_and_names_its_corpora(
    world: World, plain: VerifiedModel, tmp_path: Path
) -> None:
    stated = selection(selecting_corpora(plain.attestation.plan))
    model = verify(selected(world, tmp_path / "model", stated), trust_root=world.root, at=AT)
    assert model.attestation.selection_taint == (stated,)
    assert model.attestation.to_json()["selectionTaint"] == [stated.to_json()]
    # Gradients are another matter: what reached a layer is as it was.
    assert model.attestation.taint == plain.attestation.taint
    assert "selectionTaint" not in plain.attestation.to_json()


def test_a_selection_that_leaves_a_corpus_out_or_adds_one_is_refused(
    world: World, plain: VerifiedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora = selecting_corpora(plain.attestation.plan)
    assert len(corpora) > 1
    less = selected(world, tmp_path / "less", selection(corpora[1:]))
    with pytest.raises(VerificationFailed, match=rf"9.*plan.*{corpora[0]}"):
        verify(less, trust_root=world.root, at=AT)
    with monkeypatch.context() as control:
        control.setattr(plan_steps, "check_selection", lambda *_: None)
        verify(less, trust_root=world.root, at=AT)
    plan = plain.attestation.plan
    with pytest.raises(Refused, match="unheard-of"):
        check_selection([selection(sorted([*corpora, "unheard-of"]))], plan)
    with pytest.raises(Refused, match="search s"):
        check_selection([selection(corpora[::-1])], plan)


def test_a_corpus_that_the_plan_leaves_out_chose_nothing(plain: VerifiedModel) -> None:
    plan = plain.attestation.plan
    first, *others = selecting_corpora(plan)
    without = BatchPlan.from_json(plan.to_json() | {"excluded": [first]})
    assert selecting_corpora(without) == tuple(others)
    check_selection([selection(others)], without)
    with pytest.raises(Refused, match=first):
        check_selection([selection([first, *others])], without)


def test_early_stopping_states_the_steps_that_the_ledger_has(
    world: World, plain: VerifiedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora = selecting_corpora(plain.attestation.plan)
    held_out = {"held-out": DIGEST}
    stated = Selection(metric="validation/loss", corpora=corpora, validation=held_out, ended=4)
    assert Selection.from_json(stated.to_json()) == stated
    whole = selected(world, tmp_path / "whole", stated)
    with pytest.raises(VerificationFailed, match=r"ended the run after 4 steps.*has 6"):
        verify(whole, trust_root=world.root, at=AT)
    with monkeypatch.context() as control:
        control.setattr(ledger_step, "_check_end", lambda *_: None)
        verify(whole, trust_root=world.root, at=AT)

    def say(attestation: Attestation) -> Attestation:
        return attestation.model_copy(update={"selection_taint": (stated,)})

    ended = world.deploy(tmp_path / "ended", leaves=lambda leaves: leaves[:4], attestation=say)
    assert verify(ended, trust_root=world.root, at=AT).attestation.steps == 4
    plan = plain.attestation.plan
    for odd, why in (
        ({"validation": {corpora[0]: DIGEST}}, "was trained on"),
        ({"ended": plan.max_steps}, "the plan has"),
    ):
        with pytest.raises(Refused, match=why):
            check_selection([stated.model_copy(update=odd)], plan)
    with pytest.raises(Refused, match="ends trials as it likes"):
        Selection.from_json(stated.to_json() | {"search": "s"})
