"""What the ways to train with JAX share: the model, the policies, the same rows for each of them.

It is `benchmarks.workload` without torch. Sizes, shares and the way rows are dealt are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from flax import nnx

from benchmarks.batch import Batch
from benchmarks.cases import SEED, Shape, case_routes, deal, row_counts
from govray.engine.jax.gpt import FlaxGPT
from govray.engine.jax.layer_groups import layer_groups
from govray.governance.policy.route import Route


@dataclass(frozen=True)
class JaxWorkload:
    """One case on one rank.

    Attributes:
        case: A name in ``CASES``.
        shape: Of model and batch.
        rank: This one.
        world_size: Number of ranks.
    """

    case: str
    shape: Shape
    rank: int
    world_size: int

    def counts(self, step: int) -> dict[str, int]:
        """Profile → rows over all ranks of a step."""
        return row_counts(self.case, self.shape.rows * self.world_size, step)

    @cached_property
    def routes(self) -> dict[str, Route]:
        """Profile → route, for the profiles of the case."""
        return case_routes(self.case, layer_groups(nnx.eval_shape(self.build_model)))

    def build_model(self) -> FlaxGPT:
        """The model with its initial weights in float32, the same on every call."""
        shape = self.shape
        return FlaxGPT(
            shape.blocks, shape.width, shape.tokens, shape.vocabulary, rngs=nnx.Rngs(SEED)
        )

    def batch(self, step: int) -> Batch:
        """This rank's rows of a step, in numpy."""
        shape = self.shape
        total = shape.rows * self.world_size
        drawn = np.random.default_rng(SEED + step).integers(
            shape.vocabulary, size=(total, shape.tokens + 1), dtype=np.int32
        )
        mine = drawn[self.rank :: self.world_size]
        spans, positions = deal(self.counts(step), self.rank, self.world_size)
        tokens, targets = mine[:, :-1].copy(), mine[:, 1:].copy()
        return Batch(step, tokens, targets, spans, positions)
