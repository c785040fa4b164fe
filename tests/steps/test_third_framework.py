"""A third framework in plain numpy: seven functions, and the step governs it.

Two linear maps in a row, y = B A x, with squared errors. The lower one is ``lower``, the upper one
``upper``. Gradients are written down by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from govray.errors import RankFailed, Refused, UsageError
from govray.governance.policy.route import Route
from govray.steps.batch import IGNORED, MicroBatch, StepBatch
from govray.steps.first_exchange import Terms
from govray.steps.framework import Framework
from govray.steps.routed_step import RoutedStep

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


def build(framework: Framework, **settings) -> RoutedStep:
    return RoutedStep(framework, groups=GROUPS, routes=ROUTES, terms=TERMS, **settings)


def expected(framework: TwoMaps, own: StepBatch) -> dict[str, np.ndarray]:
    """Row by row, from the definition."""
    a, b = framework.weights["a"], framework.weights["b"]
    sums = {"lower": np.zeros_like(a), "upper": np.zeros_like(b)}
    counts = {"lower": 0, "upper": 0}
    for part in own.micro_batches:
        weights = ROUTES[part.stream].weights
        for x, y in zip(part.tensors["x"], part.tensors["targets"], strict=True):
            off = np.where(y != IGNORED, b @ a @ x - y, 0.0)
            gradient = {"lower": np.outer(b.T @ off, x), "upper": np.outer(off, a @ x)}
            for group, weight in weights.items():
                sums[group] += weight * gradient[group]
                counts[group] += int((y != IGNORED).sum())
    return {group: total / counts[group] for group, total in sums.items() if counts[group]}


@pytest.mark.parametrize("max_rows", [None, 2])
def test_the_gradient_is_the_definitions(max_rows: int | None) -> None:
    framework = TwoMaps()
    own = batch((BOTH, "open", 5), (UPPER, "weak", 3))
    mean = expected(framework, own)
    result = build(framework, clip_norm=None, max_rows=max_rows)(own, None)
    assert np.allclose(framework.momentum["a"], mean["lower"], rtol=1e-13)
    assert np.allclose(framework.momentum["b"], mean["upper"], rtol=1e-13)
    assert result.group_targets == {"lower": 9, "upper": 14}
    assert result.corpus_counts == {"open": (5, 9), "weak": (3, 5)}
    assert result.grad_norms == {
        "lower": pytest.approx(math.hypot(*map(np.linalg.norm, mean.values())))
    }


def test_a_domain_is_clipped_by_its_norm() -> None:
    framework = TwoMaps()
    build(framework, clip_norm=0.01)(batch((BOTH, "open", 5)), None)
    assert framework.norm(framework.momentum) == pytest.approx(0.01, rel=1e-4)


def test_a_group_without_rows_is_left_alone() -> None:
    framework = TwoMaps()
    step = build(framework)
    step(batch((BOTH, "open", 5)), None)
    weight, momentum = framework.weights["a"], framework.momentum["a"]
    step(batch((UPPER, "weak", 3)), None)
    assert framework.weights["a"] is weight
    assert framework.momentum["a"] is momentum


def test_what_fails_moves_nothing() -> None:
    framework = TwoMaps()
    before = framework.parameters()
    step = build(framework)
    own = batch((BOTH, "open", 5))
    own.micro_batches[0].tensors["x"][0, 0] = np.inf
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(RankFailed, match="gradient of a is not finite"),
    ):
        step(own, None)
    with pytest.raises(Refused, match="not admitted"):
        step(batch((BOTH, "else", 5)), None)
    assert all(framework.weights[name] is value for name, value in before.items())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(Refused, match="exactly once: see b"):
        RoutedStep(TwoMaps(), groups={"lower": ("a",)}, routes={}, terms=TERMS)
    with pytest.raises(UsageError, match="clip_norm is 0"):
        build(TwoMaps(), clip_norm=0)
