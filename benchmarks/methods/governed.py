"""govray's step, with everything that a run does at each step.

Included are all three exchanges, routing, the governed all-reduce and the optimizer. Rank 0 also
appends the step's ledger leaf to a write-ahead file, as a worker does. In a run, one step in fifty
samples gradient norms. ``GovernedSampled`` samples at every step, so that the cost can be measured
and spread over fifty.

``GovernedSliced`` shares passes between streams wherever it can, whatever the planner estimates.
``GovernedGraphs`` launches passes as CUDA graphs, on a GPU alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from benchmarks.batch import Batch
from benchmarks.cases import ADAPTER_RANK, SEED
from benchmarks.governed_rows import PLAN, POLICY, leaf, step_batch
from benchmarks.methods.method import Method, OnGpu
from benchmarks.workload import Workload
from govray.engine.batch import StepBatch
from govray.engine.collective.agreement import Terms
from govray.engine.collective.step_settings import StepSettings
from govray.engine.gradients import pass_planner
from govray.engine.model.adapters import Adapters
from govray.engine.step import build_step
from govray.engine.steps.step_result import StepResult
from govray.governance.record.ledger import GradientNorms, Leaf
from govray.train.run_folder.ledger_wal import WriteAhead
from govray.train.worker.recorder import gradient_norms

SAMPLED_EVERY = 50
"""Steps between two samples of gradient norms, as in a run."""


class Governed(Method):
    """A `GovernedStep` per case; each profile is one corpus of its own."""

    norms_every = SAMPLED_EVERY
    chosen: Mapping[str, bool] = MappingProxyType({})
    """Settings of the step that differ from their defaults."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        model = workload.build_model()
        adapters = Adapters(model, dict.fromkeys(workload.adapters, ADAPTER_RANK), seed=SEED)
        self.optimize(dict(model.named_parameters()))
        beside = dict(adapters.named_parameters())
        self.parameters |= beside
        for names in adapters.groups.values():  # as `govern` does: one that is not due is not seen
            self.optimizer.add_param_group({"params": [beside[name] for name in names]})
        self._step = build_step(
            model,
            self.optimizer,
            groups=workload.groups,
            routes={route.digest: route for route in workload.routes.values()},
            adapters=adapters,
            terms=Terms(
                policy_digest=POLICY,
                plan_digest=PLAN,
                corpora=tuple(workload.routes),
                clock=time.time,
            ),
            settings=StepSettings(
                seed=SEED, clip_norm=None, norms_every=self.norms_every, **self.chosen
            ),
        )
        self.ledger_seconds: list[float] = []
        self._folder = tempfile.TemporaryDirectory(prefix="govray-benchmark-")
        self._ahead = WriteAhead(Path(self._folder.name) / "ledger.ahead.jsonl", ())
        self._done = 0

    @classmethod
    def covers(cls, workload: Workload) -> bool:
        """Any policy."""
        return True

    def step(self, batch: Batch) -> None:
        """One governed step, and the ledger leaf of each that it confirms."""
        for result in self._step.queue(self._step_batch(batch), self.workload.losses):
            if self.workload.rank:
                continue
            began = time.perf_counter()
            written = leaf(result, self.workload.counts(result.step), self.workload.routes)
            self._ahead.append(written, self._norms(written, result))
            self.ledger_seconds.append(time.perf_counter() - began)
        self._done += 1

    def _step_batch(self, batch: Batch) -> StepBatch:
        own, tokens = self.workload, self.workload.shape.tokens
        return step_batch(self._done, own.routes, batch.positions, batch.rows, tokens)

    def _norms(self, leaf: Leaf, result: StepResult) -> GradientNorms | None:
        if result.norms is None:
            return None
        routes = {route.digest: route for route in self.workload.routes.values()}
        return gradient_norms(leaf, result.norms.pieces, result.norms.squares, routes)


class GovernedSampled(Governed):
    """The same, with gradient norms measured in every step."""

    norms_every = 1


class GovernedSliced(Governed):
    """The same with sliced passes wherever rows can share one."""

    def step(self, batch: Batch) -> None:
        """One governed step and its ledger leaf."""
        with always_slicing():
            super().step(batch)


class GovernedGraphs(OnGpu, Governed):
    """The same, its passes launched as CUDA graphs."""

    chosen = MappingProxyType({"cuda_graphs": True})


class GovernedSlicedGraphs(OnGpu, GovernedSliced):
    """Sliced passes wherever rows can share one, launched as CUDA graphs."""

    chosen = GovernedGraphs.chosen


@contextmanager
def always_slicing() -> Iterator[None]:
    """Inside, planners slice whatever it costs."""
    estimate = pass_planner.slicing_pays
    pass_planner.slicing_pays = lambda *_: True
    try:
        yield
    finally:
        pass_planner.slicing_pays = estimate
