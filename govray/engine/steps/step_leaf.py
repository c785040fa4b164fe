"""The ledger's leaf of a step: what the ranks agreed on, and what the plan says of the step."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from govray.engine.steps.step_result import StepResult
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import CorpusUse, Leaf


def step_leaf(
    result: StepResult,
    plan: BatchPlan,
    *,
    policy: str,
    branch: int = 0,
    rerouted: Mapping[str, str] = MappingProxyType({}),
) -> Leaf:
    """The leaf of one step. Engines that agree on the counts write the same bytes.
    ``rerouted``: corpus → digest of the route that a gate or a later phase sent its rows to."""
    return Leaf(
        branch=branch,
        step=result.step,
        world_size=result.world_size,
        policy=policy,
        plan=plan.digest,
        streams={
            stream: (span.start, span.stop) for stream, span in plan.positions(result.step).items()
        },
        corpora={
            corpus: CorpusUse(rows=rows, targets=targets, route=rerouted.get(corpus))
            for corpus, (rows, targets) in result.corpus_counts.items()
            if rows
        },
    )
