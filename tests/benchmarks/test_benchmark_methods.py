"""Methods that are timed against each other compute the same thing.

A baseline that computed something else would make the comparison worthless, so all
of them, and the governed step, must produce the same gradients on every rank.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.cases import CASES as FOUR
from benchmarks.cases import EVERYTHING, LEARNING_RATE, Shape, route
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
RESTRICTING = [case for case in CASES if case != "allow_all"]

Gradients = dict[str, Tensor]


def workload(case: str, rank: int, world_size: int = WORLD) -> Workload:
    return Workload(case, SHAPE, rank, world_size, dtype=torch.float64)


ROUTED = [
    name
    for name, method in METHODS.items()
    if name not in ("ddp", "governed") and method.covers(workload("allow_all", 0))
]
"""Those that a CPU runs."""


def train(method: Method, given: Workload) -> tuple[list[Gradients], Gradients]:
    """What the optimizer sees in each step, and the weights at the end."""
    seen: list[Gradients] = []

    def look(*_: object) -> None:
        seen.append({n: p.grad.clone() for n, p in method.parameters.items() if p.grad is not None})

    method.optimizer.register_step_pre_hook(look)
    for step in range(STEPS):
        method.step(given.batch(step))
    return seen, {name: p.detach().clone() for name, p in method.parameters.items()}


def train_all(rank: int) -> dict[tuple[str, str], tuple[list[Gradients], Gradients]]:
    """Every case with every method, and each baseline once with a policy it ignores."""
    results = {}
    for case in CASES:
        given = workload(case, rank)
        for name, method in METHODS.items():
            if method.covers(given):
                results[case, name] = train(method(given), given)
    for name in ROUTED:
        given = workload("upper_50", rank)
        # Cached properties live in the instance: now every profile may update everything.
        everything = route(EVERYTHING, given.groups)
        given.__dict__["routes"] = dict.fromkeys(given.routes, everything)
        results["ignored policy", name] = train(METHODS[name](given), given)
    return results


@pytest.fixture(scope="module")
def trained() -> list[dict[tuple[str, str], tuple[list[Gradients], Gradients]]]:
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
    compared = set()
    for rank in range(WORLD):
        for case in CASES:
            governed, _ = trained[rank][case, "governed"]
            assert len(governed) == STEPS
            assert all(torch.count_nonzero(tensor) for tensor in governed[-1].values())
            for name in ROUTED:
                if (case, name) in trained[rank]:
                    gradients, _ = trained[rank][case, name]
                    assert difference(gradients, governed) <= TOLERANCE, (case, name)
                    compared.add((case, name))
    missing = {(case, name) for case in CASES for name in ROUTED} - compared
    assert missing == {(case, "detach_activations") for case in ("mix_50_30_20", "two_domains")}


def test_allow_all_is_plain_training(trained) -> None:
    """Governed weights against one process with the whole batch, after a few AdamW steps."""
    given = replace(workload("allow_all", 0, 1), shape=replace(SHAPE, rows=WORLD * SHAPE.rows))
    model = given.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(STEPS):
        batch = given.batch(step)
        tensors = {"tokens": batch.tokens, "targets": batch.targets}
        given.losses(model, tensors).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = {name: p.detach() for name, p in model.named_parameters()}
    for name in ("ddp", "governed"):
        for rank in range(WORLD):
            _, weights = trained[rank]["allow_all", name]
            for fqn, parameter in expected.items():
                moved = float((parameter - start[fqn]).norm())
                assert float((weights[fqn] - parameter).norm()) <= 1e-9 * moved, (name, fqn)


@pytest.mark.parametrize("name", ROUTED)
def test_a_method_that_ignored_the_policy_would_be_seen(trained, name: str) -> None:
    gradients, _ = trained[0]["ignored policy", name]
    governed, _ = trained[0]["upper_50", "governed"]
    assert difference(gradients, governed) > 0.01


@pytest.mark.parametrize("case", RESTRICTING)
def test_plain_training_does_not_follow_a_policy(trained, case: str) -> None:
    plain, _ = trained[0][case, "ddp"]
    governed, _ = trained[0][case, "governed"]
    shared = [{name: step[name] for name in plain[0]} for step in governed]
    assert difference(plain, shared) > 0.01


def test_the_method_that_always_slices_makes_other_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal gradients do not tell them apart."""
    given = workload("upper_50", 0, 1)

    def passes_of(name: str) -> set[str]:
        method = METHODS[name](given)
        planner, seen = method._step.accumulation.planner, []

        def planned(rows, plan=planner.passes):
            seen.extend(plan(rows))
            return seen

        monkeypatch.setattr(planner, "passes", planned)
        method.step(given.batch(0))
        return {each.method for each in seen}

    assert passes_of("governed") == {"homogeneous"}
    assert passes_of("governed_sliced") == {"sliced"}
