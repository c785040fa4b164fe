"""Draws hang on seed, trial number and name alone; a grid is all combinations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
