"""A run that went on from others: its ledger holds theirs, and nothing less is accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from govray.errors import Refused, VerificationFailed
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.record.ancestry import Ancestor, check_ancestry, inherit
from govray.governance.record.ledger import AnyLeaf, GradientNorms, Leaf, Ledger
from govray.governance.verify.verifier import verify
from tests.support.world import AT, RUN, World


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def leaves(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[AnyLeaf, ...]:
    model = world.deploy(tmp_path_factory.mktemp("donor") / "model")
    found = tuple(verify(model, trust_root=world.root, at=AT).ledger.leaves)
    assert any(isinstance(leaf, GradientNorms) for leaf in found)
    return found


def before(leaves: tuple[AnyLeaf, ...], step: int) -> tuple[AnyLeaf, ...]:
    return tuple(leaf for leaf in leaves if leaf.step < step)


def ancestry(leaves: tuple[AnyLeaf, ...], **steps: int) -> tuple[Ancestor, ...]:
    found: tuple[Ancestor, ...] = ()
    for run, step in steps.items():
        found = inherit(run, found, step, before(leaves, step))
    return found


def clone(world: World, folder: Path, stated: tuple[Ancestor, ...], **hooks: Any) -> Path:
    """A model whose operator states this ancestry."""

    def say(attestation: Attestation) -> Attestation:
        run = attestation.run.model_copy(update={"ancestry": stated or None})
        return attestation.model_copy(update={"run": run})

    return world.deploy(folder, attestation=say, **hooks)


def test_a_clone_verifies_and_names_its_ancestors(
    world: World, leaves: tuple[AnyLeaf, ...], tmp_path: Path
) -> None:
    stated = ancestry(leaves, first=2, second=4)
    model = verify(clone(world, tmp_path / "model", stated), trust_root=world.root, at=AT)
    assert model.attestation.run.ancestry == stated
    assert [each.run for each in stated] == ["first", "second"]
    # Whoever has the donor's ledger can compare its head with the one stated.
    given = Ledger("second", before(leaves, 4))
    assert (stated[1].size, stated[1].root) == (given.size, "sha256:" + given.root.hex())
    # What the ancestors trained on counts: the clone's coverage is that of all steps.
    assert {leaf.step for leaf in model.ledger.steps} == set(range(world.steps))


Break = Callable[[tuple[Ancestor, ...]], tuple[Ancestor, ...]]


def changed(index: int, **fields: Any) -> Break:
    def change(stated: tuple[Ancestor, ...]) -> tuple[Ancestor, ...]:
        mended = list(stated)
        mended[index] = stated[index].model_copy(update=fields)
        return tuple(mended)

    return change


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (changed(0, step=3), "do not end with step 2"),
        (changed(0, size=1_000_000), "do not end with step 1"),
        (changed(0, size=0), "do not end with step 1"),
        (changed(1, root="sha256:" + "0" * 64), "another root"),
        (changed(1, run="first"), "its own ancestor"),
        (changed(0, run=RUN), "its own ancestor"),
        (lambda stated: stated[::-1], "out of order"),
        (lambda stated: (stated[0], stated[0].model_copy(update={"run": "x"})), "out of order"),
    ],
)
def test_an_ancestry_that_does_not_fit_its_ledger_is_refused(
    world: World, leaves: tuple[AnyLeaf, ...], tmp_path: Path, wrong: Break, message: str
) -> None:
    stated = wrong(ancestry(leaves, first=2, second=4))
    with pytest.raises(Refused, match=message):
        check_ancestry(RUN, stated, leaves)
    with pytest.raises(VerificationFailed, match=rf"step 10 \(ledger\): .*{message}"):
        verify(clone(world, tmp_path / "model", stated), trust_root=world.root, at=AT)


def test_the_norms_of_the_last_step_belong_to_the_ancestor(leaves: tuple[AnyLeaf, ...]) -> None:
    sample = next(i for i, leaf in enumerate(leaves) if isinstance(leaf, GradientNorms))
    step = leaves[sample].step + 1
    whole = inherit("first", (), step, leaves[: sample + 1])
    check_ancestry(RUN, whole, leaves)
    with pytest.raises(Refused, match="norms of its last step are cut off"):
        check_ancestry(RUN, inherit("first", (), step, leaves[:sample]), leaves)


def test_a_ledger_whose_ancestors_were_cut_off_is_refused(world: World, tmp_path: Path) -> None:
    """The clone's own steps alone: what trained its weights before is missing."""

    def own(steps: list[Leaf]) -> list[Leaf]:
        return [leaf for leaf in steps if leaf.step >= 4]

    cut = clone(world, tmp_path / "model", (), leaves=own, norms=lambda norms: [])
    with pytest.raises(VerificationFailed, match="step 4 where step 0 was due"):
        verify(cut, trust_root=world.root, at=AT)
