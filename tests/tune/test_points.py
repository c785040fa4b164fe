"""Draws hang on seed, trial number and name alone; a grid is all combinations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import UsageError
from govray.tune.points import draw, grid, grid_size
from tests.support.search_files import search_file

SPACE = {
    "optimizer.lr": {"log": [1e-4, 1e-2]},
    "optimizer.weight_decay": {"uniform": [0.0, 0.2]},
    "data.rows_per_step.upper_half": {"int": [1, 64]},
    "hyperparameters.width": {"choice": [16, 32]},
}


@given(st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_a_draw_is_in_its_range_and_does_not_hang_on_the_other_names(
    seed: int, number: int
) -> None:
    space = search_file(space=SPACE).search.space
    point = draw(space, seed, number)
    assert 1e-4 <= point["optimizer.lr"] <= 1e-2
    assert 0 <= point["optimizer.weight_decay"] <= 0.2
    assert 1 <= point["data.rows_per_step.upper_half"] <= 64
    assert point["hyperparameters.width"] in (16, 32)
    for name in space:
        assert draw({name: space[name]}, seed, number) == {name: point[name]}


def test_draws_differ_by_trial_and_by_seed_and_are_the_same_tomorrow() -> None:
    space = search_file(space={"optimizer.lr": {"log": [1e-4, 1e-2]}}).search.space
    drawn = {draw(space, seed, n)["optimizer.lr"] for seed in range(3) for n in range(20)}
    assert len(drawn) == 60
    assert draw(space, 17, 0)["optimizer.lr"] == pytest.approx(0.00111326747793886)


def test_half_of_a_logarithmic_range_is_below_its_geometric_mean() -> None:
    space = search_file(space={"optimizer.lr": {"log": [1e-4, 1e-2]}}).search.space
    below = sum(draw(space, 1, n)["optimizer.lr"] < 1e-3 for n in range(1000))
    assert 430 < below < 570


def test_a_grid_is_every_combination_with_both_ends() -> None:
    search = search_file(
        space={
            "optimizer.lr": {"log": [1e-4, 1e-2], "count": 3},
            "hyperparameters.width": {"choice": [16, 32]},
            "data.rows_per_step.upper_half": {"int": [1, 64], "count": 2},
        },
        max_trials=12,
    ).search
    points = list(grid(search))
    assert len(points) == grid_size(search) == 12
    assert [p["hyperparameters.width"] for p in points[:4]] == [16, 16, 32, 32]
    assert [p["data.rows_per_step.upper_half"] for p in points[:2]] == [1, 64]
    rates = sorted({p["optimizer.lr"] for p in points})
    assert rates == [1e-4, pytest.approx(1e-3), 1e-2]


def test_whole_numbers_need_no_count() -> None:
    search = search_file(space={"seed": {"int": [3, 6]}}).search
    assert [p["seed"] for p in grid(search)] == [3, 4, 5, 6]
    more = search_file(space={"seed": {"int": [3, 4], "count": 9}}).search
    assert [p["seed"] for p in grid(more)] == [3, 4]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"optimizer.lr": {"log": [1e-4, 1e-2]}}, "optimizer.lr: a grid has no end"),
        ({"seed": {"int": [0, 9]}, "max_rows": {"choice": [1]}}, "no name that may vary"),
        ({"seed": {"int": [0, 8]}}, "9 = 9 points is more than max_trials 8"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(space: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        list(grid(search_file(space=space, max_trials=8).search))
    assert message in str(caught.value)
