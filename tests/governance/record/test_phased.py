"""A corpus whose route has phases: what a ledger then holds, and what a verifier refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from govray.errors import VerificationFailed
from govray.governance.attestation import model_attestation as attesting
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.policy.route import Route
from govray.governance.record.ledger import GradientNorms, Leaf
from tests.support.monitored_world import SECTION, Monitored, from_step
from tests.support.row_by_row import corpus_counts
from tests.support.world import POLICY, World

UPPER = '{layers: {"blocks[0.5:]": 1, final_norm: 0.3, head: 1}}'
PHASED = UPPER[:-1] + (
    ", phases: [{from_step: 4, layers: {all: 0.5}}, {from_step: 9, layers: [head]},"
    " {from_step: 50, layers: all}]}"
)
assert UPPER in POLICY
TEXT = POLICY.replace(UPPER, PHASED)
OPEN = {"embedding": 0.5, "block.0": 0.5, "block.1": 0.5, "final_norm": 0.5, "head": 0.5}
"""What holds from step 4 until step 9. The run has 12 steps, so the last phase is never reached."""


def world(text: str = TEXT, steps: int = 12) -> World:
    found = World(corpora={"acme": (30,), "alpha": (30,), "gamma": (30,)}, steps=steps)
    found.policy_text = text
    found.policy = read_policy(text).seal(found.keys.compliance)
    return found


def verified(here: World, folder: Path) -> Any:
    return here.verify(folder)


def test_leaves_name_the_route_of_the_phase(tmp_path: Path) -> None:
    found = verified(here := world(), here.deploy(tmp_path))
    route = found.routes["gamma"]
    assert [step for step, _ in route.by_phase] == [0, 4, 9]
    for leaf in found.ledger.steps:
        if "gamma" in leaf.corpora:
            later = route.later_at(leaf.step)
            assert leaf.corpora["gamma"].route == (later.digest if later else None)
        assert all(use.route is None for c, use in leaf.corpora.items() if c != "gamma")
    assert all("gamma" in leaf.corpora for leaf in found.ledger.steps)


def test_coverage_is_a_recount_by_the_phase(tmp_path: Path) -> None:
    found = verified(here := world(), here.deploy(tmp_path))
    plan, manifest = found.attestation.plan, found.manifest.document
    tokens: dict[str, int] = {}
    weighted: dict[str, Decimal] = {}
    for leaf in found.ledger.steps:
        count = corpus_counts(plan, manifest, leaf.streams)["gamma"][1]
        weights = {"block.1": 1.0, "final_norm": 0.3, "head": 1.0}
        if leaf.step >= 4:
            weights = OPEN if leaf.step < 9 else {"head": 1.0}
        for group, weight in weights.items():
            tokens[group] = tokens.get(group, 0) + count
            part = Decimal(count) * Decimal(str(weight))
            weighted[group] = weighted.get(group, Decimal(0)) + part
    stated = {row.group: row for row in found.attestation.coverage if row.corpus == "gamma"}
    assert {group: row.tokens for group, row in stated.items()} == tokens
    assert {group: Decimal(row.weighted_tokens) for group, row in stated.items()} == weighted
    assert found.coverage["gamma", "embedding"].steps == 5


def uses(change: Callable[[Leaf], Mapping[str, Any]]) -> Callable[[list[Leaf]], list[Leaf]]:
    """The leaves, their use of gamma changed."""

    def each(leaf: Leaf) -> Leaf:
        use = leaf.corpora["gamma"].model_copy(update=dict(change(leaf)))
        return leaf.model_copy(update={"corpora": {**leaf.corpora, "gamma": use}})

    return lambda leaves: [each(leaf) for leaf in leaves]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            uses(lambda leaf: {"route": Route(OPEN).digest}),
            "step 0: .*by the phases and gates they take their own route",
            id="open from the start",
        ),
        pytest.param(
            uses(lambda leaf: {"route": None}),
            "step 4: .*gamma took their own route, and by the phases",
            id="never in the next phase",
        ),
        pytest.param(
            uses(lambda leaf: {"route": Route(OPEN).digest if leaf.step >= 4 else None}),
            "step 9: .*took route sha256:",
            id="open to the end",
        ),
        pytest.param(
            uses(lambda leaf: {"route": "sha256:" + "1" * 64} if leaf.step == 11 else {}),
            "step 11|route sha256:1111",
            id="a route of nobody",
        ),
    ],
)
def test_a_step_in_another_phase_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[list[Leaf]], list[Leaf]],
    message: str,
) -> None:
    here = world()
    with monkeypatch.context() as lenient:  # whoever signs does not look
        lenient.setattr(attesting.coverage, "coverage", lambda *_: ())
        folder = here.deploy(tmp_path, leaves=change, norms=lambda norms: [])
    with pytest.raises(VerificationFailed) as raised:
        verified(here, folder)
    assert re.search(message, str(raised.value))


def test_a_gradient_that_a_phase_forbids_is_refused(tmp_path: Path) -> None:
    def wide(norms: list[GradientNorms]) -> list[GradientNorms]:
        return [
            each.model_copy(
                update={
                    "squared_norms": {
                        **each.squared_norms,
                        "gamma": {**each.squared_norms["gamma"], "embedding": 0.5},
                    }
                }
            )
            if each.step < 4
            else each
            for each in norms
        ]

    here = world()
    folder = here.deploy(tmp_path, norms=wide)
    with pytest.raises(VerificationFailed, match="gradient of corpus gamma in embedding, which"):
        verified(here, folder)


def stated(change: Callable[[Attestation], Mapping[str, Any]]) -> dict[str, Any]:
    return {"attestation": lambda document: document.model_copy(update=dict(change(document)))}


def without_phases(document: Attestation) -> Mapping[str, Any]:
    return {
        "corpora": tuple(
            each.model_copy(update={"route": each.route.model_copy(update={"phases": None})})
            for each in document.corpora
        )
    }


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (stated(lambda _: {"phase_exclusions": None}), "attestation phaseExclusions"),
        (
            stated(lambda _: {"phase_exclusions": {"gamma": {"embedding": ((0, 12),)}}}),
            "attestation phaseExclusions",
        ),
        (stated(without_phases), "class, rules or route do not follow"),
    ],
)
def test_what_is_stated_of_phases_follows(
    tmp_path: Path, hooks: dict[str, Any], message: str
) -> None:
    here = world()
    folder = here.deploy(tmp_path, **hooks)
    with pytest.raises(VerificationFailed, match=message):
        verified(here, folder)


def test_the_ledger_of_another_policy_is_refused(tmp_path: Path) -> None:
    """The run obeyed phases that begin at step 4, and the policy in its folder says 5."""
    here = world()
    opened = verified(here, here.deploy(tmp_path / "obeyed")).routes["gamma"].later_at(4)
    text = TEXT.replace("from_step: 4", "from_step: 5")
    edited = read_policy(text).seal(here.keys.compliance)
    early = uses(lambda leaf: {"route": opened.digest} if leaf.step == 4 else {})
    folder = here.deploy(tmp_path / "edited", policy=edited, leaves=early, norms=lambda _: [])
    with pytest.raises(VerificationFailed, match=r"gamma took .*they take their own") as raised:
        verified(here, folder)
    assert "step 4" in str(raised.value)


def test_a_gate_in_a_later_phase_ends_it(tmp_path: Path) -> None:
    """A monitored corpus in its second phase is found to be memorized."""
    own = '  own: {layers: none, adapter: "{corpus}", rank: 2}\nrules:\n'
    wide = "everything: {layers: [head], phases: [{from_step: 5, layers: all}]}"
    text = POLICY.replace("everything: {layers: all}", wide).replace("rules:\n", own)
    text += SECTION.replace("fallback: nothing", "fallback: own")
    world = Monitored(deviations=from_step("alpha", 6)).under(text)
    found = verified(world, world.run(tmp_path))
    [gate] = found.gates
    assert (gate.corpus, gate.step, gate.fallback) == ("alpha", 10, "own")
    opened = found.routes["alpha"].later_at(5)
    for leaf in found.ledger.steps:
        due = None if leaf.step < 5 else opened
        if "alpha" in leaf.corpora:
            gated = found.routes.fallbacks["alpha"].route if leaf.step >= 10 else due
            assert leaf.corpora["alpha"].route == (gated.digest if gated else None)
        if "beta" in leaf.corpora:
            assert leaf.corpora["beta"].route == (due.digest if due else None)
    closed = found.attestation.phase_exclusions["alpha"]
    assert closed == dict.fromkeys(("embedding", "block.0", "block.1", "final_norm"), ((0, 5),))
    reached = found.coverage["alpha", "embedding"].steps
    assert reached == sum("alpha" in leaf.corpora for leaf in found.ledger.steps[5:10])
