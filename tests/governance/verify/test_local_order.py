"""A plan with a local order: the verifier and the trace compute it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from govray.errors import VerificationFailed
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import Leaf
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.row_order import RowOrder
from govray.governance.verify.trace import trace
from govray.governance.verify.verifier import verify
from tests.support.world import AT, World, record


def local(plan: BatchPlan, *, window: int = 2) -> BatchPlan:
    return BatchPlan(**dict(plan) | {"order": RowOrder(block=1, window=window)})


def test_a_local_order_is_recomputed_and_traced(tmp_path: Path) -> None:
    world = World()
    model = world.verify(world.deploy(tmp_path / "m", plan=local))
    plan = model.attestation.plan
    assert plan.order == RowOrder(block=1, window=2)
    assert any(stream.n > 2 for stream in plan.streams)
    read: dict[tuple[str, int], set[int]] = {}
    for leaf in model.ledger.steps:
        for rows in plan.rows(leaf.step).values():
            for _, corpus, row in rows:
                for span in model.records.row_records(corpus, row):
                    read.setdefault((corpus, span.record), set()).add(leaf.step)
    for corpus, parts in world.records.items():
        for number, digest in enumerate(digest for part in parts for digest, *_ in part):
            for sighting in trace(model, digest, world.secrets):
                assert set(sighting.steps) == read.get((corpus, number), set())


def test_a_ledger_of_another_order_is_refused(tmp_path: Path) -> None:
    world = World()
    stages: dict[str, Any] = {}

    def manifest(made: Manifest) -> Manifest:
        stages["manifest"] = made
        return made

    def plan(made: BatchPlan) -> BatchPlan:
        stages["plan"] = local(made)
        return local(made)

    def leaves(recorded: list[Leaf]) -> list[Leaf]:
        """What was read by another order, under the name of the plan."""
        promised = stages["plan"]
        other = record(local(promised, window=1), stages["manifest"], recorded[0].policy)
        return [leaf.model_copy(update={"plan": promised.digest}) for leaf in other]

    folder = world.deploy(tmp_path / "m", manifest=manifest, plan=plan, leaves=leaves)
    with pytest.raises(VerificationFailed, match="step"):
        verify(folder, trust_root=world.root, at=AT)
