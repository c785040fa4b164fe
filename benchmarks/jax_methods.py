"""Ways to train with JAX, each behind one interface: ``step(batch)``, which waits for the device.

All have the same weights at first, AdamW of Optax, and the mean loss. ``fused`` is what people
write: one program of loss, gradient, sum over processes and optimizer, over arrays that are sharded
by row. ``two_programs`` is the same in two, one for the gradient and one for the optimizer.
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.batch import Batch
from benchmarks.cases import LEARNING_RATE, SEED
from benchmarks.governed_rows import PLAN, POLICY, leaf, step_batch
from benchmarks.jax_workload import JaxWorkload
from govray.engine.jax import build_step
from govray.engine.jax.gpt import loss
from govray.engine.steps.first_exchange import Terms
from govray.train.run_folder.ledger_wal import WriteAhead

Tree = Any
"""Arrays of JAX in whatever holds them."""


class JaxMethod(ABC):
    """One way to train. Construction and steps are collective.

    Attributes:
        workload: What it trains on.
    """

    def __init__(self, workload: JaxWorkload) -> None:
        self.workload = workload

    @abstractmethod
    def step(self, batch: Batch) -> None:
        """One optimizer step with this rank's rows, on all ranks together."""


class Plain(JaxMethod):
    """Plain data-parallel training: it asks no policy."""

    def __init__(self, workload: JaxWorkload) -> None:
        super().__init__(workload)
        ranks = range(jax.process_count())
        first = [next(d for d in jax.devices() if d.process_index == rank) for rank in ranks]
        mesh = Mesh(np.array(first), ("ranks",))
        self._by_row = NamedSharding(mesh, PartitionSpec("ranks"))
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        self.optimizer = optax.adamw(LEARNING_RATE)
        definition, state, rest = nnx.split(workload.build_model(), nnx.Param, ...)
        self.held = jax.tree.map(self._replicated, (state, self.optimizer.init(state)))

        def mean_loss(state: Tree, tensors: Mapping[str, jax.Array]) -> jax.Array:
            return loss(nnx.merge(definition, state, rest), tensors).mean()

        self.gradient = jax.value_and_grad(mean_loss)

    def _replicated(self, array: jax.Array) -> jax.Array:
        return jax.make_array_from_process_local_data(self.everywhere, np.asarray(array))

    def updated(self, state: Tree, moments: Tree, gradients: Tree) -> tuple[Tree, Tree]:
        """Weights and optimizer state after an update."""
        updates, moments = self.optimizer.update(gradients, moments, state)
        return optax.apply_updates(state, updates), moments

    def sharded(self, batch: Batch) -> dict[str, jax.Array]:
        """The rows of all processes as arrays of which each process has its own."""
        tensors = {"tokens": batch.tokens, "targets": batch.targets}
        return {
            name: jax.make_array_from_process_local_data(self._by_row, tensor)
            for name, tensor in tensors.items()
        }


class Fused(Plain):
    """One program. It may write over the arrays that it was given."""

    def __init__(self, workload: JaxWorkload) -> None:
        super().__init__(workload)

        def trained(held: Tree, tensors: Mapping[str, jax.Array]) -> tuple[Tree, jax.Array]:
            state, moments = held
            found, gradients = self.gradient(state, tensors)
            return self.updated(state, moments, gradients), found

        self._trained = jax.jit(trained, donate_argnums=0, out_shardings=self.everywhere)

    def step(self, batch: Batch) -> None:
        """One call."""
        self.held, found = self._trained(self.held, self.sharded(batch))
        jax.block_until_ready(self.held)
        float(found)


class TwoPrograms(Plain):
    """One program for gradients, one for the optimizer."""

    def __init__(self, workload: JaxWorkload) -> None:
        super().__init__(workload)
        self._gradient = jax.jit(self.gradient, out_shardings=self.everywhere)
        self._updated = jax.jit(self.updated, donate_argnums=(0, 1), out_shardings=self.everywhere)

    def step(self, batch: Batch) -> None:
        """Two calls."""
        found, gradients = self._gradient(self.held[0], self.sharded(batch))
        self.held = jax.block_until_ready(self._updated(*self.held, gradients))
        float(found)


class GovernedFlax(JaxMethod):
    """govray's step over JAX: each profile is one corpus of its own.

    Rank 0 also appends the step's ledger leaf to a write-ahead file, as a worker does.

    Attributes:
        ledger_seconds: What that took, by step.
    """

    def __init__(self, workload: JaxWorkload) -> None:
        super().__init__(workload)
        self._step = build_step(
            workload.build_model(),
            optax.adamw(LEARNING_RATE),
            routes={route.digest: route for route in workload.routes.values()},
            terms=Terms(
                policy_digest=POLICY,
                plan_digest=PLAN,
                corpora=tuple(workload.routes),
                clock=time.time,
            ),
            seed=SEED,
            clip_norm=None,
        )
        self.ledger_seconds: list[float] = []
        self._folder = tempfile.TemporaryDirectory(prefix="govray-benchmark-")
        self._ahead = WriteAhead(Path(self._folder.name) / "ledger.ahead.jsonl", ())
        self._done = 0

    def step(self, batch: Batch) -> None:
        """One governed step and its ledger leaf."""
        own, tokens = self.workload, self.workload.shape.tokens
        result = self._step(
            step_batch(self._done, own.routes, batch.positions, batch.rows, tokens), loss
        )
        if own.rank == 0:
            began = time.perf_counter()
            self._ahead.append(leaf(result, own.counts(result.step), own.routes), None)
            self.ledger_seconds.append(time.perf_counter() - began)
        self._done += 1


METHODS: Mapping[str, type[JaxMethod]] = {
    "fused": Fused,
    "two_programs": TwoPrograms,
    "governed": GovernedFlax,
}
"""By name, in the order in which tables show them."""
