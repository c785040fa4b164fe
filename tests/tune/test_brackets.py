"""Rungs and brackets: Determined's formulas on the vectors of its tests, in exact arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.tune.brackets import Mode, adaptive, bracket_lengths, trials_per_bracket


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
