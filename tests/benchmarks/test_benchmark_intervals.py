"""Paired ratios and their interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intervals import paired_ratio

times = st.floats(0.01, 100.0)


def test_a_common_disturbance_cancels() -> None:
    machine = [1.0, 5.0, 2.0, 9.0]
    ratio = paired_ratio([0.8 * slow for slow in machine], machine)
    assert ratio is not None
    assert (ratio.median, *ratio.interval) == pytest.approx((0.8, 0.8, 0.8))


def test_rounds_without_a_pair_are_left_out() -> None:
    ratio = paired_ratio([1.0, None, 3.0], [2.0, 2.0, 2.0])
    assert ratio is not None
    assert (ratio.median, ratio.pairs) == (1.0, 2)
    assert paired_ratio([None], [1.0]) is None


@given(st.lists(st.tuples(times, times), min_size=1, max_size=40))
def test_the_interval_holds_the_median_and_repeats(pairs: list[tuple[float, float]]) -> None:
    one, other = zip(*pairs, strict=True)
    ratio = paired_ratio(one, other)
    assert ratio is not None
    low, high = ratio.interval
    assert low <= ratio.median <= high
    assert ratio == paired_ratio(one, other)


def test_more_spread_gives_a_wider_interval() -> None:
    narrow = paired_ratio([1 + 0.01 * (i % 7) for i in range(30)], [1.0] * 30)
    wide = paired_ratio([1 + 0.1 * (i % 7) for i in range(30)], [1.0] * 30)
    assert narrow is not None
    assert wide is not None
    assert wide.interval[1] - wide.interval[0] > 5 * (narrow.interval[1] - narrow.interval[0])
