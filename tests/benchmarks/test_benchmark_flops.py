"""The analytic FLOP ratio, against sums done by hand and the properties it must have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cases import Shape
from benchmarks.flops import flop_ratio, gpt_operations
from govray.governance.policy.route import Route
from govray.train.watching.flops import Operation


def chain(sizes: list[float]) -> list[Operation]:
    """Layers one above the other, each a group of its own."""
    return [Operation(place, f"layer.{place}", size) for place, size in enumerate(sizes)]


def test_it_is_the_published_formula_on_a_plain_chain() -> None:
    operations = chain([10.0, 20.0, 30.0])
    upper, lowest = Route({"layer.2": 1.0}), Route({"layer.0": 1.0})
    # B = 4; A = 0, 1, 1 rows with something permitted below; P = 1, 0, 3.
    streams = [(3, upper), (1, lowest)]
    hand = 10 * (4 + 0 + 1) + 20 * (4 + 1 + 0) + 30 * (4 + 1 + 3)
    assert flop_ratio(operations, streams) == pytest.approx(hand / (3 * 60 * 4))


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
