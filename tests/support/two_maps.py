"""Two linear maps in a row, y = B A x, in plain numpy, and batches for them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from govray.engine.steps.batch import IGNORED, MicroBatch, StepBatch
from govray.engine.steps.first_exchange import Terms
from govray.governance.policy.route import Route

DIGEST = "sha256:" + "0" * 64
TERMS = Terms(policy_digest=DIGEST, plan_digest=DIGEST, corpora=("open", "weak"))
BOTH = Route({"lower": 0.5, "upper": 1.0})
UPPER = Route({"upper": 0.25})
ROUTES = {route.digest: route for route in (BOTH, UPPER)}
GROUPS = {"lower": ("a",), "upper": ("b",)}

Arrays = Mapping[str, np.ndarray]


class TwoMaps:
    """SGD with momentum, whose state is of each group."""

    rank, world_size = 0, 1

    def __init__(self) -> None:
        drawn = np.random.default_rng(1)
        self.weights = {"a": drawn.normal(size=(3, 4)), "b": drawn.normal(size=(2, 3))}
        self.momentum = {name: np.zeros_like(w) for name, w in self.weights.items()}

    def parameters(self) -> Arrays:
        return dict(self.weights)

    def differentiate(self, part, routed, step, loss_fn, sums):
        a, b, x = self.weights["a"], self.weights["b"], part.tensors["x"]
        counted = part.tensors["targets"] != IGNORED
        off = np.where(counted, x @ a.T @ b.T - part.tensors["targets"], 0.0)
        own = {"a": b.T @ off.T @ x, "b": off.T @ (x @ a.T)}
        new = {n: sums.get(n, 0.0) + w * own[n] for n, w in routed.weights.items()}
        return 0.5 * (off**2).sum(), {**sums, **new}

    def gather(self, row):
        return [list(row)]

    def average(self, sums, counts):
        return {name: sums.get(name, np.zeros(())) / n for name, n in counts.items()}

    def norm(self, gradients):
        return math.sqrt(sum((g**2).sum() for g in gradients.values()))

    def move(self, group, step, gradients, scale):
        momentum = {n: 0.9 * self.momentum[n] + scale * g for n, g in gradients.items()}
        return {n: (self.weights[n] - 0.1 * m, m) for n, m in momentum.items()}

    def put(self, moved):
        for group in moved:
            for name, (weight, momentum) in group.items():
                self.weights[name], self.momentum[name] = weight, momentum


def rows(route: Route, corpus: str, count: int, seed: int) -> tuple[MicroBatch, np.ndarray]:
    drawn = np.random.default_rng(seed)
    targets = drawn.normal(size=(count, 2))
    targets[0, 0] = IGNORED
    part = MicroBatch(
        stream=route.digest,
        tensors={"x": drawn.normal(size=(count, 4)), "targets": targets},
        positions=tuple(range(count)),
        row_targets=tuple((targets != IGNORED).sum(1).tolist()),
        corpora=(corpus,) * count,
    )
    return part, targets


def batch(*named: tuple[Route, str, int]) -> StepBatch:
    parts = [
        rows(route, corpus, count, place)[0] for place, (route, corpus, count) in enumerate(named)
    ]
    uses = {p.corpora[0]: (len(p.positions), p.targets) for p in parts}
    return StepBatch(0, tuple(parts), uses)
