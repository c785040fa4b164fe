"""A step's rows as a governed step takes them, and the leaf that it leaves: each profile a corpus.

Neither torch nor JAX is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from govray.engine.steps.batch import MicroBatch, StepBatch
from govray.engine.steps.step_result import StepResult
from govray.governance.formats.canonical_json import sha256
from govray.governance.policy.route import Route
from govray.governance.record.ledger import CorpusUse, Leaf

POLICY = sha256(b"benchmark policy")
PLAN = sha256(b"benchmark plan")


def step_batch(
    step: int,
    routes: Mapping[str, Route],
    positions: Mapping[str, tuple[int, ...]],
    rows: Callable[[str], Mapping[str, Any]],
    tokens: int,
) -> StepBatch:
    """A rank's part of a step.

    Args:
        step: The global step.
        routes: By profile.
        positions: Profile → index of each of this rank's rows among the step's rows of it.
        rows: Of a profile: the loss function's inputs.
        tokens: Loss targets of a row.
    """
    micro_batches = []
    corpora = {}
    for profile, own in positions.items():
        if own:
            targets = (tokens,) * len(own)
            micro_batches.append(
                MicroBatch(
                    stream=routes[profile].digest,
                    tensors=rows(profile),
                    positions=own,
                    row_targets=targets,
                    corpora=(profile,) * len(own),
                )
            )
            corpora[profile] = (len(own), sum(targets))
    return StepBatch(step, tuple(micro_batches), corpora)


def leaf(result: StepResult, counts: Mapping[str, int], routes: Mapping[str, Route]) -> Leaf:
    """What the ledger has of a step.

    Args:
        result: The step's.
        counts: Profile → rows over all ranks of the step.
        routes: By profile.
    """
    return Leaf(
        branch=0,
        step=result.step,
        world_size=result.world_size,
        policy=POLICY,
        plan=PLAN,
        streams={
            route.digest: (result.step * counts[profile], (result.step + 1) * counts[profile])
            for profile, route in routes.items()
            if profile in counts
        },
        corpora={
            corpus: CorpusUse(rows=rows, targets=targets)
            for corpus, (rows, targets) in result.corpus_counts.items()
        },
    )
