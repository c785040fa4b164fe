"""The permutation test: exact under the hypothesis, sensitive otherwise, and by record."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from govray.engine.permutation import p_values, unit_means
from govray.errors import UsageError


def normal(rows: int, seed: int) -> Tensor:
    drawn = torch.randn(rows, 1, generator=torch.Generator().manual_seed(seed))
    return drawn.double()


finite = st.floats(-1e6, 1e6, width=32)


@given(
    st.lists(finite, min_size=1, max_size=12),
    st.lists(finite, min_size=1, max_size=12),
    st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_p_is_one_of_the_possible_values_and_repeats(
    probe: list[float], reserve: list[float], key: int
) -> None:
    sides = torch.tensor(probe).double()[:, None], torch.tensor(reserve).double()[:, None]
    (p,) = p_values(*sides, key, permutations=99)
    assert round(p * 100) in range(1, 101)
    assert p * 100 == pytest.approx(round(p * 100))
    assert p_values(*sides, key, permutations=99) == [p]


@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e3))
@settings(max_examples=30, deadline=None)
def test_neither_offset_nor_scale_nor_sign_of_a_statistic_counts(
    offset: float, scale: float
) -> None:
    probe, reserve = normal(7, 1), normal(9, 2)
    p = p_values(probe, reserve, "key")
    assert p_values(offset + scale * probe, offset + scale * reserve, "key") == p
    assert p_values(-probe, -reserve, "key") == p


def test_equal_values_differ_in_nothing() -> None:
    assert p_values(torch.full((5, 2), 0.1), torch.full((6, 2), 0.1), "key") == [1.0, 1.0]


def test_a_shift_is_found_in_either_direction_and_p_is_never_zero() -> None:
    probe, reserve = normal(32, 1) + 3, normal(32, 2)
    assert p_values(probe, reserve, "key") == [1 / 2000]
    assert p_values(reserve, probe, "key") == [1 / 2000]


def false_alarms(by_record: bool) -> float:
    """Share of 200 pairs from one distribution with p of at most .05; records have four rows."""
    alarms = 0
    for trial in range(200):
        values = normal(16, 2 * trial).repeat_interleave(4, 0) + 0.2 * normal(64, 2 * trial + 1)
        units = [row // 4 for row in range(32)]
        sides = values[:32], values[32:]
        if by_record:
            sides = unit_means(sides[0], units), unit_means(sides[1], units)
        alarms += p_values(*sides, trial, permutations=199)[0] <= 0.05
    return alarms / 200


def test_records_are_exchangeable_and_rows_of_a_record_are_not() -> None:
    assert false_alarms(by_record=True) <= 0.1
    assert false_alarms(by_record=False) >= 0.2  # the control: what relabelling rows would do


def test_units_are_averaged_in_order_of_first_appearance() -> None:
    values = torch.tensor([[1.0], [10.0], [3.0]])
    assert unit_means(values, ["b", "a", "b"]).flatten().tolist() == [2.0, 10.0]


def test_no_global_generator_moves() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    p_values(normal(4, 0), normal(4, 1), "key")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_empty_side_is_refused() -> None:
    with pytest.raises(UsageError, match="both sides"):
        p_values(torch.zeros(0, 1), torch.zeros(3, 1), "key")
