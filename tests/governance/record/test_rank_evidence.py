"""The e-value of ranks: a mean of at most 1 at its tolerance, what it finds, what it refuses."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.errors import Refused
from govray.governance.record.rank_evidence import (
    MOST,
    e_value,
    least_odds,
    most,
    top_sizes,
)

Scores = npt.NDArray[np.float64]


def counts_of(trained: Scores, held: Scores) -> tuple[int, ...]:
    """Of the best of both."""
    labels = np.repeat([1, 0], [len(trained), len(held)])
    best = labels[np.argsort(-np.concatenate([trained, held]))]
    return tuple(int(best[:size].sum()) for size in top_sizes(len(best)))


def mean_e(trained: int, held: int, effect: float, odds: float, runs: int = 2000) -> float:
    """Of runs whose scores have exactly the odds ratio ``effect`` at every threshold.

    Each counts as 100 at most: a mean of 1 needs no rare large ones, and so few runs tell it.
    """
    draw = np.random.default_rng([trained, held, round(100 * effect)])
    found = [
        e_value(
            trained,
            held,
            counts_of(draw.logistic(np.log(effect), 1, trained), draw.logistic(0, 1, held)),
            odds,
        )
        for _ in range(runs)
    ]
    return float(np.minimum(found, 100).mean())


@given(st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_without_an_effect_the_mean_over_all_rankings_is_exactly_1(trained: int, held: int) -> None:
    total = trained + held
    found = [
        e_value(trained, held, [sum(p < size for p in places) for size in top_sizes(total)], 1.0)
        for places in combinations(range(total), trained)
    ]
    assert sum(found) / len(found) == pytest.approx(1.0)


@pytest.mark.parametrize("odds", [1.0, 1.5, 4.0])
@pytest.mark.parametrize(("trained", "held"), [(64, 64), (200, 20)])
def test_at_the_edge_of_the_tolerance_the_mean_is_at_most_1(
    trained: int, held: int, odds: float
) -> None:
    assert mean_e(trained, held, odds, odds) <= 1.15  # three standard errors above 1


def test_an_e_value_that_ignored_the_tolerance_would_not_hold_it() -> None:
    assert mean_e(64, 64, 1.5, 1.0) > 1.5


def test_a_small_part_known_well_and_a_little_of_all_are_both_found() -> None:
    draw = np.random.default_rng(3)
    held, trained = draw.normal(0, 1, 256), draw.normal(0, 1, 256)
    few = np.where(np.arange(256) < 48, trained + 4, trained)
    assert e_value(256, 256, counts_of(trained, held), 1.5) < 20
    assert e_value(256, 256, counts_of(few, held), 1.5) > 200
    assert e_value(256, 256, counts_of(trained + 1, held), 1.5) > 200
    assert e_value(256, 256, counts_of(trained - 4, held), 1.5) < 1  # less known is no evidence


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_more_records_among_the_best_are_more_evidence_and_larger_odds_less(
    data: st.DataObject,
) -> None:
    trained, held = data.draw(st.integers(2, 80)), data.draw(st.integers(2, 80))
    places = data.draw(st.permutations([1] * trained + [0] * held))
    sums = np.cumsum(places)
    counts = [int(sums[size - 1]) for size in top_sizes(trained + held)]
    odds = data.draw(st.floats(1, 20))
    e = e_value(trained, held, counts, odds)
    assert 0 <= e <= most(trained, held, odds) <= MOST
    assert e_value(trained, held, counts, odds * 1.1) <= e


def test_the_largest_e_value_is_bounded_by_how_few_rankings_there_are() -> None:
    assert most(2, 2, 1.0) < 6  # C(4, 2)
    assert most(2, 1, 1.0) < 3  # C(3, 1)
    assert most(512, 512, 1.5) == MOST


@pytest.mark.parametrize(
    "counts",
    [
        (0, 1, 4, 9, 20, 30, 35),  # one is missing
        (2, 2, 4, 9, 20, 30, 35, 38),  # more than the best
        (0, 1, 4, 3, 20, 30, 35, 38),  # it falls
        (0, 0, 0, 6, 6, 30, 35, 38),  # more are added than are looked at
        (0, 1, 4, 9, 20, 30, 35, 41),  # more than were trained on
        (0, 1, 4, 9, 20, 30, 33, 38),  # fewer than the others leave
    ],
)
def test_counts_that_no_ranking_has_are_refused(counts: tuple[int, ...]) -> None:
    assert e_value(40, 40, (0, 1, 3, 7, 18, 25, 32, 37), 1.5) > 0
    with pytest.raises(Refused, match="cannot be ones trained on"):
        e_value(40, 40, counts, 1.5)


def test_the_bound_of_the_odds_is_what_the_evidence_still_rejects() -> None:
    counts = (10, 20, 50, 98, 220, 360, 440, 480)
    bound = least_odds(512, 512, [counts], 0.05)
    assert 3 < bound < 10
    assert e_value(512, 512, counts, bound) >= 20 > e_value(512, 512, counts, bound * 1.03)
    # Of two layers the mean must reach it, so one that shows nothing costs half the evidence.
    even = (5, 10, 26, 51, 128, 256, 384, 461)
    assert 1 < least_odds(512, 512, [counts, even], 0.05) < bound
    assert least_odds(512, 512, [even], 0.05) == 1.0


def test_without_an_effect_the_bound_is_above_the_truth_in_at_most_the_level() -> None:
    draw = np.random.default_rng(11)
    bounds = [
        least_odds(
            64, 64, [counts_of(draw.logistic(np.log(2), 1, 64), draw.logistic(0, 1, 64))], 0.1
        )
        for _ in range(300)
    ]
    assert np.mean([bound > 2 for bound in bounds]) <= 0.1
