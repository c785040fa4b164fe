"""A third framework in plain numpy: seven functions, and the step governs it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from govray.engine.steps.batch import IGNORED, StepBatch
from govray.engine.steps.routed_step import Framework, RoutedStep
from govray.errors import RankFailed, Refused
from tests.support.two_maps import BOTH, GROUPS, ROUTES, TERMS, UPPER, TwoMaps, batch


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
