"""Methods that are timed against each other compute the same thing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.cases import CASES as FOUR
from benchmarks.cases import EVERYTHING, Shape, route
from benchmarks.methods import METHODS
from benchmarks.methods.method import Method
from benchmarks.ranks import run_ranks
from benchmarks.workload import Workload

pytestmark = pytest.mark.story

SHAPE = Shape(blocks=4, width=32, tokens=16, rows=8, vocabulary=33)
STEPS = 3  # adapters' A matrices have no gradient in the first
WORLD = 2
TOLERANCE = 1e-10

CASES = [*FOUR, "two_domains"]

Gradients = dict[str, Tensor]


def workload(case: str, rank: int) -> Workload:
    return Workload(case, SHAPE, rank, WORLD, dtype=torch.float64)


ROUTED = ["governed_sampled", "governed_sliced", "detach_and_where"]
"""Those that a CPU runs."""


def train(method: Method, given: Workload) -> list[Gradients]:
    """What the optimizer sees in each step."""
    seen: list[Gradients] = []

    def look(*_: object) -> None:
        seen.append({n: p.grad.clone() for n, p in method.parameters.items() if p.grad is not None})

    method.optimizer.register_step_pre_hook(look)
    for step in range(STEPS):
        method.step(given.batch(step))
    return seen


def train_all(rank: int) -> dict[tuple[str, str], list[Gradients]]:
    """Every case with every method, and each once with a policy it ignores."""
    results = {}
    for case in CASES:
        given = workload(case, rank)
        for name in ("governed", *ROUTED):
            results[case, name] = train(METHODS[name](given), given)
    for name in ROUTED:
        given = workload("upper_50", rank)
        # Cached properties live in the instance: now every profile may update everything.
        everything = route(EVERYTHING, given.groups)
        given.__dict__["routes"] = dict.fromkeys(given.routes, everything)
        results["ignored policy", name] = train(METHODS[name](given), given)
    return results


@pytest.fixture(scope="module")
def trained() -> list[dict[tuple[str, str], list[Gradients]]]:
    return run_ranks(train_all, WORLD, "cpu")


def difference(one: list[Gradients], other: list[Gradients]) -> float:
    """Largest relative difference of a tensor in any step."""
    largest = 0.0
    for left, right in zip(one, other, strict=True):
        assert left.keys() == right.keys()
        for name, tensor in left.items():
            scale = max(float(right[name].norm()), 1e-30)
            largest = max(largest, float((tensor - right[name]).norm()) / scale)
    return largest


def test_all_methods_see_the_same_gradients(trained) -> None:
    for rank in range(WORLD):
        for case in CASES:
            governed = trained[rank][case, "governed"]
            assert len(governed) == STEPS
            assert all(torch.count_nonzero(tensor) for tensor in governed[-1].values())
            for name in ROUTED:
                assert difference(trained[rank][case, name], governed) <= TOLERANCE, (case, name)


@pytest.mark.parametrize("name", ROUTED)
def test_a_method_that_ignored_the_policy_would_be_seen(trained, name: str) -> None:
    ignored = trained[0]["ignored policy", name]
    assert difference(ignored, trained[0]["upper_50", "governed"]) > 0.01
