"""The analytic FLOP ratio, against sums done by hand and the properties it must have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cases import ADAPTER_NAME, EVERYTHING, REMOVABLE, UPPER_HALF, Shape, route
from benchmarks.flops import gpt_operations
from govray.governance.policy.route import Route
from govray.train.watching.flops import Operation, flop_ratio, row_flops

SHAPE = Shape(blocks=2, width=4, tokens=3, rows=8, vocabulary=5)
GROUPS = ("embedding", "block.0", "block.1", "final_norm", "head")
ALL = route(EVERYTHING, dict.fromkeys(GROUPS))
UPPER = route(UPPER_HALF, dict.fromkeys(GROUPS))
ADAPTER = route(REMOVABLE, dict.fromkeys(GROUPS))

# One row of three tokens, width 4: 2·3·4·(12 + 4 + 16 + 16) in a block's linear layers,
# 4·3²·4 in its attention, 2·3·4·5 in the head.
LINEAR, ATTENTION, HEAD = 1152.0, 144.0, 120.0


def chain(sizes: list[float]) -> list[Operation]:
    """Layers one above the other, each a group of its own."""
    return [Operation(place, f"layer.{place}", size) for place, size in enumerate(sizes)]


def test_a_row_that_may_update_everything_costs_three_products_each() -> None:
    assert row_flops(gpt_operations(SHAPE), ALL) == 3 * (2 * (LINEAR + ATTENTION) + HEAD)


def test_a_row_for_the_upper_half_goes_forward_below_and_everywhere_above() -> None:
    # Block 0 forward only. All of block 1 lies above the weight of its first norm.
    expected = (LINEAR + ATTENTION) + 3 * (LINEAR + ATTENTION + HEAD)
    assert row_flops(gpt_operations(SHAPE), UPPER) == expected
    ratio = flop_ratio(gpt_operations(SHAPE), [(1, ALL), (3, UPPER)])
    plain = 3 * (2 * (LINEAR + ATTENTION) + HEAD)
    assert ratio == pytest.approx((plain + 3 * expected) / (4 * plain))


def test_a_row_for_an_adapter_pays_its_products_and_the_inputs_gradients() -> None:
    # Rank 8 beside (4, 12), (4, 4), (4, 16) and (16, 4): A then B, 2·3·8 a channel.
    first_a, others_a, b = 48.0 * 4, 48.0 * (4 + 4 + 16), 48.0 * (12 + 4 + 16 + 4)
    lora = (2 * first_a + 3 * others_a + 3 * b) + 3 * (first_a + others_a + b)
    # The lowest layer has nothing to update below it: forward only. No weight gradients.
    lowest = 2.0 * 3 * 4 * 12
    base = 2 * (2 * LINEAR + HEAD) - lowest + 3 * (2 * ATTENTION)
    assert row_flops(gpt_operations(SHAPE, [ADAPTER_NAME]), ADAPTER) == base + lora


def test_others_do_not_pay_for_an_adapter() -> None:
    with_adapter = gpt_operations(SHAPE, [ADAPTER_NAME])
    assert row_flops(with_adapter, ALL) == row_flops(gpt_operations(SHAPE), ALL)


def test_it_is_the_published_formula_on_a_plain_chain() -> None:
    operations = chain([10.0, 20.0, 30.0])
    upper, lowest = Route({"layer.2": 1.0}), Route({"layer.0": 1.0})
    # B = 4; A = 0, 1, 1 rows with something permitted below; P = 1, 0, 3.
    streams = [(3, upper), (1, lowest)]
    hand = 10 * (4 + 0 + 1) + 20 * (4 + 1 + 0) + 30 * (4 + 1 + 3)
    assert flop_ratio(operations, streams) == pytest.approx(hand / (3 * 60 * 4))


routes = st.sets(st.sampled_from(GROUPS), min_size=1).map(lambda g: Route(dict.fromkeys(g, 1.0)))


@given(
    blocks=st.integers(1, 6),
    width=st.integers(1, 512),
    tokens=st.integers(1, 512),
    rows=st.integers(1, 99),
)
def test_allow_all_is_one(blocks: int, width: int, tokens: int, rows: int) -> None:
    shape = Shape(blocks=blocks, width=width, tokens=tokens)
    groups = ["embedding", *(f"block.{i}" for i in range(blocks)), "final_norm", "head"]
    everything = Route(dict.fromkeys(groups, 1.0))
    assert flop_ratio(gpt_operations(shape), [(rows, everything)]) == pytest.approx(1.0)


@given(first=routes, second=routes)
def test_permitting_more_never_costs_less(first: Route, second: Route) -> None:
    union = Route(dict(first.weights) | dict(second.weights))
    operations = gpt_operations(SHAPE)
    assert row_flops(operations, union) >= row_flops(operations, first)


@given(permitted=routes, rows=st.integers(1, 50), others=st.integers(1, 50))
def test_it_lies_between_a_forward_pass_and_plain_training(
    permitted: Route, rows: int, others: int
) -> None:
    operations = gpt_operations(SHAPE)
    ratio = flop_ratio(operations, [(rows, permitted), (others, ALL)])
    assert 1 / 3 < ratio <= 1
    assert flop_ratio(operations, [(rows + 1, permitted), (others, ALL)]) <= ratio + 1e-12
