"""Draws hang on seed, trial number and name alone; a grid is all combinations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.tune.points import draw, grid, grid_size
from govray.tune.successive_halving import Mode, adaptive, bracket_lengths, trials_per_bracket
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


@pytest.mark.parametrize(
    ("trials", "divisor", "lengths", "expected"),
    [
        (20, 3, (3, 2, 1), (12, 5, 3)),
        (50, 3, (4, 3), (35, 15)),
        (50, 4, (3, 2), (37, 13)),
        (100, 4, (4, 3, 2), (70, 22, 8)),
    ],
)
def test_trials_per_bracket(
    trials: int, divisor: int, lengths: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert trials_per_bracket(trials, divisor, lengths) == expected


@pytest.mark.parametrize(
    ("most", "mode", "expected"),
    [
        (5, "aggressive", (5,)),
        (5, "standard", (5, 4, 3)),
        (4, "standard", (4, 3, 2)),
        (3, "standard", (3, 2)),
        (3, "conservative", (3, 2, 1)),
        (1, "standard", (1,)),
    ],
)
def test_bracket_lengths(most: int, mode: Mode, expected: tuple[int, ...]) -> None:
    assert bracket_lengths(most, mode) == expected


@given(
    st.integers(1, 500),
    st.integers(1, 5000),
    st.integers(2, 6),
    st.integers(1, 8),
    st.sampled_from(["aggressive", "standard", "conservative"]),
)
def test_every_trial_has_a_bracket_and_every_ladder_rises_to_the_end(
    max_trials: int, max_time: int, divisor: int, max_rungs: int, mode: Mode
) -> None:
    found = adaptive(
        max_trials=max_trials,
        max_time=max_time,
        divisor=divisor,
        max_rungs=max_rungs,
        mode=mode,
    )
    assert sum(bracket.trials for bracket in found) == max_trials
    for bracket in found:
        assert bracket.trials >= 1
        assert list(bracket.rungs) == sorted(set(bracket.rungs))
        assert bracket.rungs[-1] == max_time
