"""Directions have what a route permits and the optimizer's scale, and totals what records say."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from govray.engine.influence.optimizer_scale import optimizer_scale
from govray.engine.influence.routed_direction import routed_direction
from govray.engine.influence.sampled_total import SampledTotal, sampled_total
from govray.train.checkpoint.optimizer_state import optimizer_state

GROUPS = {"block.0": ("a", "b"), "head": ("c",), "adapter:acme": ("d",)}
factors = st.dictionaries(st.sampled_from([*GROUPS]), st.floats(0.1, 2))
numbers = st.lists(
    st.tuples(st.floats(-5, 5, allow_subnormal=False), st.integers(1, 90)), min_size=1, max_size=9
)


def gradient() -> dict[str, Tensor]:
    return {name: torch.full((2,), float(place + 1)) for place, name in enumerate("abc")}


@given(factors)
def test_a_direction_has_what_the_route_permits_and_the_output_is_read_with(
    permitted: dict[str, float],
) -> None:
    found = routed_direction(gradient(), GROUPS, permitted)
    assert set(found) == {n for group in permitted for n in GROUPS[group]} - {"d"}
    for group, factor in permitted.items():
        for name in set(GROUPS[group]) & set(found):
            assert torch.equal(found[name], gradient()[name] * factor)


def test_a_corpus_whose_layers_the_output_does_not_read_has_no_direction() -> None:
    assert routed_direction(gradient(), GROUPS, {"adapter:acme": 1.0}) == {}
    # The control: read with the adapter, it has one.
    adapted = gradient() | {"d": torch.ones(2)}
    assert set(routed_direction(adapted, GROUPS, {"adapter:acme": 1.0})) == {"d"}


def test_a_parameter_that_no_step_moved_has_no_part() -> None:
    scales = {"a": torch.tensor([2.0, 0.5], dtype=torch.float64)}
    found = routed_direction(gradient(), GROUPS, {"block.0": 3.0, "head": 1.0}, scales)
    assert {name: each.tolist() for name, each in found.items()} == {"a": [6.0, 1.5]}


def stepped(kind: type[torch.optim.Optimizer], **arguments: Any) -> tuple[Any, nn.Parameter]:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = kind([weight], lr=0.5, **arguments)
    for _ in range(400):  # equal gradients: the moments are what they converge to
        weight.grad = torch.tensor([1.0, -4.0, 0.25])
        optimizer.step()
    return optimizer_state(optimizer, {weight: "w"}), weight


def test_adam_s_scale_is_what_its_step_does_to_a_gradient() -> None:
    state, weight = stepped(torch.optim.Adam)
    scale = optimizer_scale(*state)
    assert scale is not None
    moved = 0.5 * torch.tensor([1.0, -4.0, 0.25]) * scale["w"]
    assert torch.allclose(moved.float(), -weight.detach() / 400, rtol=1e-4)


def test_an_optimizer_without_second_moments_has_no_scale() -> None:
    assert optimizer_scale(*stepped(torch.optim.SGD, momentum=0.9)[0]) is None


@given(numbers, st.randoms(use_true_random=False))
def test_a_total_does_not_depend_on_the_order_of_records(
    pairs: list[tuple[float, int]], draw: random.Random
) -> None:
    def of(some: list[tuple[float, int]]) -> SampledTotal:
        values, sizes = zip(*some, strict=True)
        return sampled_total(values, sizes, size=100, share=0.25, seed=3)

    one = of(pairs)
    draw.shuffle(pairs)
    other = of(pairs)
    assert (one.value, one.interval) == (other.value, other.interval)
    low, high = one.interval
    assert low <= one.value <= high


@given(numbers, st.floats(-3, 3))
def test_a_total_is_linear_in_what_records_bring(
    pairs: list[tuple[float, int]], factor: float
) -> None:
    values, sizes = zip(*pairs, strict=True)
    one = sampled_total(values, sizes, size=50, share=1, seed=0)
    other = sampled_total([factor * v for v in values], sizes, size=50, share=1, seed=0)
    assert other.value == pytest.approx(factor * one.value, abs=1e-9)


def test_who_looked_at_all_records_has_no_error_of_choice_and_who_did_not_has_one() -> None:
    values, sizes = [1.0, 5.0, 2.0], [10, 10, 10]
    whole = sampled_total(values, sizes, size=30, share=1, seed=0)
    assert whole.value == 8
    assert whole.interval == (8, 8)
    low, high = sampled_total(values, sizes, size=30, share=0.1, seed=0).interval
    assert low < 8 < high


def test_sums_of_totals_add_their_errors() -> None:
    one = sampled_total([1.0, 5.0], [1, 1], size=2, share=0.5, seed=0)
    other = sampled_total([2.0, 3.0], [1, 1], size=2, share=0.5, seed=1)
    both = SampledTotal.sum([one, other])
    assert both.value == 11
    assert torch.equal(both.draws, one.draws + other.draws)
    assert SampledTotal.sum([]).interval == (0, 0)


def test_a_total_needs_a_record() -> None:
    with pytest.raises(ValueError, match="at least one"):
        sampled_total([], [], size=1, share=1, seed=0)
