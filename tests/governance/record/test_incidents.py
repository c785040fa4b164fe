"""The story of a monitored run: what follows from its profiles, and what a verifier refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from govray.errors import Refused, VerificationFailed
from govray.governance.attestation import model_attestation as attesting
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.entropy_profile import EntropyProfile, Side
from govray.governance.record.gates import Gate, carried, joined, on_lineage
from govray.governance.record.incidents import follow
from govray.governance.record.ledger import AnyLeaf, Ledger
from govray.governance.record.rank_evidence import e_value
from govray.governance.verify.verifier import verify
from tests.support.monitored_world import (
    CALM,
    EVEN,
    SECTION,
    Deviations,
    Monitored,
    from_step,
    verified,
)
from tests.support.world import AT, POLICY, RUN, World


def test_a_gate_follows_two_probes_and_the_corpus_is_not_read_again(tmp_path: Path) -> None:
    world = Monitored(deviations=from_step("alpha", 6))
    found = verified(world, world.run(tmp_path))
    # Probes follow steps 1, 3, …: the evidence of those after 7 and 9 is enough.
    [gate] = found.gates
    assert (gate.corpus, gate.step, gate.reason) == ("alpha", 10, "memorization")
    assert gate.evidence == found.ledger.profiles[4].digest
    used = [leaf.step for leaf in found.ledger.steps if "alpha" in leaf.corpora]
    assert max(used) < 10
    planned = [
        s for s in range(10, 20) for _, c, _ in _rows(found.attestation.plan, s) if c == "alpha"
    ]
    assert planned  # the control
    findings = found.attestation.memorization
    assert findings is not None
    [decision] = findings.decisions
    # Ten profiles and one rollback: 20 of budget, three corpora of the trunk, 1/fdr: 200 in all.
    assert (decision.step, decision.action) == (9, "gate")
    some = e_value(32, 32, world.some("alpha"), 1.5)
    assert decision.e == pytest.approx((2 * some + 3 * CALM) / 20)
    assert findings.unmeasurable == ()


def _rows(plan: BatchPlan, step: int) -> list[tuple[int, str, int]]:
    return [row for rows in plan.rows(step).values() for row in rows]


def test_a_rollback_goes_back_to_before_the_corpus_was_flagged(tmp_path: Path) -> None:
    world = Monitored(deviations=from_step("acme", 8))
    found = verified(world, world.run(tmp_path))
    findings = found.attestation.memorization
    assert findings is not None
    [decision] = findings.decisions
    # Calm after step 7, so step 8 is where it is left out from; the commit is of step 8 too.
    assert (decision.action, decision.step, decision.since) == ("rollback", 11, 8)
    assert findings.branches == (0, 8)
    assert [(g.branch, g.step, g.corpus) for g in found.gates] == [(1, 8, "acme")]
    steps = [(leaf.branch, leaf.step) for leaf in found.ledger.steps]
    assert steps == [(0, s) for s in range(12)] + [(1, s) for s in range(8, 20)]
    assert on_lineage(found.gates, findings.branches) == (
        found.gates[0].model_copy(update={"branch": 0}),
    )


def test_steps_between_the_commit_and_the_gate_are_repeated_as_they_were(tmp_path: Path) -> None:
    world = Monitored(deviations=from_step("acme", 6), commits_every=5)
    found = verified(world, world.run(tmp_path))
    assert found.attestation.memorization.branches == (0, 5)
    [gate] = found.gates
    assert (gate.branch, gate.step) == (1, 6)  # though the branch begins at 5
    one, other = (
        next(leaf for leaf in found.ledger.steps if (leaf.branch, leaf.step) == (branch, 5))
        for branch in (0, 1)
    )
    assert one.corpora == other.corpora


def test_the_budget_is_spent_and_what_follows_is_a_gate(tmp_path: Path) -> None:
    """Two adapters' corpora would have two budgets; here one corpus of the trunk has none left."""
    text = (POLICY + SECTION).replace("open: {action: gate, fallback: nothing}", "open: rollback")
    world = Monitored(
        deviations=lambda corpus, branch, step: (
            9.0 * ((corpus == "alpha" and step >= 4) or (corpus == "beta" and step >= 12))
        )
    )
    world.under(text)
    found = verified(world, world.run(tmp_path))
    decisions = found.attestation.memorization.decisions
    assert [(d.corpus, d.action) for d in decisions] == [("alpha", "rollback"), ("beta", "gate")]


Change = Callable[[list[AnyLeaf]], list[AnyLeaf]]


def without_profile(step: int) -> Change:
    return lambda leaves: [
        leaf for leaf in leaves if not (isinstance(leaf, EntropyProfile) and leaf.step == step)
    ]


def changed_profile(step: int, **changes: Any) -> Change:
    return lambda leaves: [
        leaf.model_copy(update=changes)
        if isinstance(leaf, EntropyProfile) and leaf.step == step
        else leaf
        for leaf in leaves
    ]


def measures(**changes: Any) -> Change:
    """The measures of the profile after step 7, changed."""

    def change(leaves: list[AnyLeaf]) -> list[AnyLeaf]:
        return [
            leaf.model_copy(
                update={"measures": tuple(m.model_copy(update=changes) for m in leaf.measures)}
            )
            if isinstance(leaf, EntropyProfile) and leaf.step == 7
            else leaf
            for leaf in leaves
        ]

    return change


def cut(leaves: list[AnyLeaf]) -> list[AnyLeaf]:
    return [leaf for leaf in leaves if leaf.branch == 0]


def go_on(leaves: list[AnyLeaf]) -> list[AnyLeaf]:
    """Instead of a new branch, the old one goes on."""
    kept = [leaf for leaf in leaves if leaf.branch == 0 or leaf.step >= 12]
    return [leaf.model_copy(update={"branch": 0}) for leaf in kept]


def late(leaves: list[AnyLeaf]) -> list[AnyLeaf]:
    return [leaf for leaf in leaves if leaf.branch == 0 or leaf.step >= 10]


def signed_blindly(world: Monitored, folder: Path, **changes: Any) -> Path:
    """A run whose signer does not look at what follows from its profiles."""
    with pytest.MonkeyPatch.context() as lenient:
        lenient.setattr(attesting, "incidents", lambda *_: None)
        return world.run(folder, **changes)


GATING = from_step("alpha", 6)
ROLLING = from_step("acme", 8)


@pytest.mark.parametrize(
    ("deviations", "change", "message"),
    [
        (GATING, without_profile(3), "no entropy profile of acme, alpha, beta, gamma"),
        (GATING, without_profile(19), "no entropy profile"),
        (GATING, changed_profile(5, statistic="entropy"), "the policy asks for min_k"),
        (GATING, measures(top=EVEN), "does not follow from the entropy profiles"),
        (GATING, measures(top=(1, 1, 1, 8, 8, 16, 24, 29)), "cannot be ones trained on"),
        (
            GATING,
            measures(probe=Side(records=33, entropy=1.0)),
            "measured by more than 32 rows",
        ),
        (ROLLING, cut, "a rollback was due, and nothing followed"),
        (ROLLING, go_on, "went on in a branch that was rolled back"),
        (ROLLING, late, "begins after step 8"),
        (
            lambda *_: 0.0,
            lambda leaves: [*leaves, leaves[-2].model_copy(update={"branch": 1})],
            "follows from no rollback",
        ),
    ],
)
def test_another_story_is_refused(
    tmp_path: Path,
    deviations: Deviations,
    change: Change,
    message: str,
) -> None:
    world = Monitored(deviations=deviations)
    fitting = {cut: {"branch": 1, "step": 99}, go_on: {"branch": 0, "step": 12}, late: {"step": 10}}

    def gates(made: list[Gate]) -> list[Gate]:
        """What hides the change from the checks of gates alone."""
        moved = [gate.model_copy(update=fitting.get(change, {})) for gate in made]
        return [gate for gate in moved if gate.step < 99]

    folder = signed_blindly(world, tmp_path, change=change, gates=gates)
    with pytest.raises(VerificationFailed, match=message):
        verified(world, folder)


LIMITED = (POLICY + SECTION).replace("every: 2", "every: 2\n  rules: [open]")
LIMITED = LIMITED.replace("  rollbacks: 1\n", "").replace("    contracts: rollback\n", "")


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        (lambda gates: [], "uses? corpus|do not follow from the plan"),
        (lambda gates: [g.model_copy(update={"step": 11}) for g in gates], "follow"),
        (
            lambda gates: [g.model_copy(update={"evidence": "sha256:" + "1" * 64}) for g in gates],
            "does not follow|though it follows",
        ),
        (
            lambda gates: [
                *gates,
                Gate(step=12, corpus="beta", reason="memorization", evidence="sha256:" + "1" * 64),
            ],
            "used corpus beta, which a gate left out",
        ),
    ],
)
def test_gates_are_those_that_follow(
    tmp_path: Path, gates: Callable[[list[Gate]], list[Gate]], message: str
) -> None:
    world = Monitored(deviations=GATING)
    folder = world.run(tmp_path, gates=gates)
    with pytest.raises(VerificationFailed, match=message):
        verified(world, folder)


def test_an_attestation_that_keeps_silent_is_refused(tmp_path: Path) -> None:
    world = Monitored(deviations=GATING)
    folder = world.run(
        tmp_path, attestation=lambda made: made.model_copy(update={"memorization": None})
    )
    with pytest.raises(VerificationFailed, match="attestation memorization"):
        verified(world, folder)


def test_without_a_monitor_there_is_no_such_story(tmp_path: Path) -> None:
    world = Monitored(deviations=GATING)
    world.run(tmp_path / "monitored")
    profiles = world.made["profiles"]
    plain = World(steps=20)
    with pytest.raises(Refused, match="does not ask for"):
        plain.deploy(tmp_path / "plain", all_leaves=lambda leaves: [*leaves, profiles[0]])
    assert (
        "memorization"
        not in verify(
            plain.deploy(tmp_path / "silent"), trust_root=plain.root, at=AT
        ).attestation.to_json()
    )


def test_one_story_whoever_follows_it(tmp_path: Path) -> None:
    """A worker decides leaf by leaf, a verifier over the whole ledger."""
    world = Monitored(deviations=ROLLING)
    found = verified(world, world.run(tmp_path))
    section = found.policy.document.memorization
    again = follow(section, world.subjects(), found.ledger.leaves, found.manifest.document)
    assert again.findings() == found.attestation.memorization
    assert Ledger(RUN, found.ledger.leaves).root == found.ledger.root


def test_what_a_credential_gated_is_carried_to_every_later_branch() -> None:
    time = "2026-11-10T08:30:00Z"
    legal = Gate(branch=1, step=7, corpus="a", reason="expired", since=time, time=time)
    memorized = Gate(
        branch=1, step=9, corpus="a", reason="memorization", evidence="sha256:" + "1" * 64
    )
    found = carried([legal, memorized], (0, 4, 2))
    assert [(g.branch, g.step, g.corpus) for g in found] == [(1, 7, "a"), (2, 2, "a")]
    assert carried(found, (0, 4, 2)) == found
    assert on_lineage(found, (0, 4, 2))[0].step == 2
    assert len(joined([legal, memorized, legal])) == 2  # one of each kind
