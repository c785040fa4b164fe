"""Streams that are not read at every step: what verifies, what a trace says, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from govray.errors import VerificationFailed
from govray.governance.record.batch_plan import BatchPlan, StreamPlan
from govray.governance.record.ledger import Leaf
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.verify.trace import trace
from govray.governance.verify.verifier import verify
from tests.support.world import AT, World, record


def with_acme(plan: BatchPlan, **changes: Any) -> BatchPlan:
    streams = [
        StreamPlan(**dict(s) | changes) if s.corpora[0].corpus == "acme" else s
        for s in plan.streams
    ]
    return BatchPlan(**dict(plan) | {"streams": tuple(streams)})


def third_steps(plan: BatchPlan) -> BatchPlan:
    return with_acme(plan, every=3, phase=2)


def test_a_phase_is_recomputed_and_traced(tmp_path: Path) -> None:
    world = World()
    folder = world.deploy(tmp_path / "m", plan=third_steps)
    model = world.verify(folder)
    [acme] = {s.id for s in model.attestation.plan.streams if s.corpora[0].corpus == "acme"}
    assert [leaf.step for leaf in model.ledger.steps if acme in leaf.streams] == [2, 5]
    seen = set()
    for part in world.records["acme"]:
        for digest, *_ in part:
            [sighting] = trace(model, digest, world.secrets)
            seen |= set(sighting.steps)
    assert seen == {2, 5}


def test_a_run_that_kept_another_phase_is_refused(tmp_path: Path) -> None:
    world = World()
    stages: dict[str, Any] = {}

    def manifest(made: Manifest) -> Manifest:
        stages["manifest"] = made
        return made

    def plan(made: BatchPlan) -> BatchPlan:
        stages["plan"] = third_steps(made)
        return third_steps(made)

    def leaves(recorded: list[Leaf]) -> list[Leaf]:
        """The same readings, each a step early."""
        promised = stages["plan"]
        early = record(with_acme(promised, phase=1), stages["manifest"], recorded[0].policy)
        return [leaf.model_copy(update={"plan": promised.digest}) for leaf in early]

    folder = world.deploy(tmp_path / "m", manifest=manifest, plan=plan, leaves=leaves)
    with pytest.raises(VerificationFailed, match="step 1"):
        verify(folder, trust_root=world.root, at=AT)
