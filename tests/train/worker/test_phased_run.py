"""Runs under a policy with phases: resumed, replayed, compared with plain ones. No Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from govray.governance.attestation import model_folder
from govray.governance.verify.verifier import VerifiedModel, verify
from govray.train.attest.write_model import write_model
from govray.train.checkpoint import commit_folder
from govray.train.driver.trainer import GovernedTrainer
from govray.train.replay.replayed_run import replay
from govray.train.run_folder.ledger_wal import recorded_leaves
from govray.train.state.snapshot import latest
from tests.support.deployment import POLICY, Deployment
from tests.support.killed_training import killed_after
from tests.support.solo import run_here

STEPS, BEGINS = 12, 5
UPPER = 'layers: ["blocks[0.5:]", final_norm, head]'
CLOSED = dict.fromkeys(("embedding", "block.0"), ((0, BEGINS),))
ACME = model_folder.adapter_files("acme")[1]


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)


def under(here: Deployment, phases: str) -> Deployment:
    """The deployment, its weaker corpora's profile with these phases."""
    assert UPPER in POLICY
    here.policy = here.sign_policy(POLICY.replace(UPPER, f"{UPPER}, phases: [{phases}]"))
    return here


def trainer_of(here: Deployment) -> GovernedTrainer:
    return here.trainer(
        max_steps=STEPS,
        checkpoint={"every_steps": 3, "save_trial_latest": 4},
    )


def attested(here: Deployment, trainer: GovernedTrainer) -> tuple[Path, VerifiedModel]:
    run = trainer.train()
    write_model(run, trainer.signer())
    return run, verify(run / "model", trust_root=here.root)


def tensors(run: Path, *names: str) -> list[bytes]:
    found = latest(run)
    assert found is not None
    assert found[1] == STEPS
    files: Any = commit_folder.load(found[0]).files
    return [files[name] for name in names or (model_folder.WEIGHTS, ACME)]


def test_a_run_follows_its_phases_and_resumes_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = under(Deployment(tmp_path / "here"), f"{{from_step: {BEGINS}, layers: all}}")
    run, model = attested(here, trainer_of(here))
    opened = model.routes["weak-one"].later_at(BEGINS)
    assert opened is not None
    uses = {leaf.step: leaf.corpora.get("weak-one") for leaf in model.ledger.steps}
    assert {step for step, use in uses.items() if use} >= {0, BEGINS - 1, BEGINS, STEPS - 1}
    for step, use in uses.items():
        if use:
            assert use.route == (opened.digest if step >= BEGINS else None)
    assert model.attestation.phase_exclusions == {"weak-one": CLOSED}
    late = sum(step >= BEGINS for step, use in uses.items() if use)
    assert model.coverage["weak-one", "embedding"].steps == late
    # Without a corpus that trains an adapter alone, every phase gives the base the same bytes.
    for left_out in (replay(run, without="acme"), replay(run), replay(run, steps=(6, STEPS))):
        assert left_out.identical, (left_out.leaf, left_out.tensor)
    # Killed in the second phase, it comes to the same end.
    killed_after(BEGINS + 3, trainer_of(here).train, monkeypatch)
    [killed] = [each for each in run.parent.glob("tiny-*") if each != run]
    resumed = replace(trainer_of(here), resume=killed)
    resumed.train()
    assert tensors(killed) == tensors(run)
    assert [leaf.line for leaf in recorded_leaves(killed)] == [
        leaf.line for leaf in recorded_leaves(run)
    ]


def never_trimmed(patch: pytest.MonkeyPatch) -> None:
    """Let a phase that the run doesn't reach take part in the plan."""
    patch.setattr("govray.governance.policy.corpus_routes.CorpusRoutes.until", lambda self, _: self)


def test_phases_that_change_nothing_give_the_weights_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Deployment(tmp_path / "here")
    plain = tensors(trainer_of(here).train())
    for phases in (
        f"{{from_step: 2, {UPPER}}}, {{from_step: 7, {UPPER}}}",
        f"{{from_step: {STEPS}, layers: all}}",
    ):
        assert tensors(trainer_of(under(here, phases)).train()) == plain
    changed = under(here, f"{{from_step: {STEPS - 1}, layers: all}}")
    assert tensors(trainer_of(changed).train())[:1] != plain[:1]
    # The control: a phase beyond the last step would join domains, and draw another order.
    with monkeypatch.context() as patched:
        never_trimmed(patched)
        beyond = under(here, f"{{from_step: {STEPS}, layers: all}}")
        assert tensors(trainer_of(beyond).train()) != plain
