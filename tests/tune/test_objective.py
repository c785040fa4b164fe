"""The governed order: a memorizer never wins, a scale changes nothing, what is unknown is last."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.tune import objective
from govray.tune.objective import (
    WORST,
    Goal,
    TrialReport,
    conclude,
    governed,
    pareto_front,
    report,
    sort_key,
)

losses = st.floats(-1e100, 1e100)
violations = st.floats(0, 1e100, exclude_min=True)
scales = st.floats(1e-50, 1e50)


@given(losses, violations, losses, scales)
def test_a_memorizer_never_beats_a_governed_trial_at_any_scale(
    memorizers: float, v: float, others: float, scale: float
) -> None:
    for better in (memorizers, memorizers * scale):
        for worse in (others, others * scale):
            assert sort_key(worse, 0.0) < sort_key(better, v)
            assert governed(worse, 0.0) < governed(better, v)


def test_a_weighted_sum_would_let_a_memorizer_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what the order rules out, metric plus violation does at some scale."""

    def objectives() -> list[float]:
        pairs = ((0.1, 1.5), (2.0, 0.5))
        return [report(step=1, value=x, memorization=m, tau=1.0).objective for x, m in pairs]

    memorizer, other = objectives()
    assert other < memorizer
    monkeypatch.setattr(objective, "sort_key", lambda x, v: (False, x + v))
    memorizer, other = objectives()
    assert memorizer < other


@given(st.lists(st.tuples(losses, st.just(0.0) | violations), min_size=2, max_size=6), scales)
def test_the_order_is_that_of_the_rescaled_loss(
    trials: list[tuple[float, float]], scale: float
) -> None:
    for (a, va), (b, vb) in itertools.permutations(trials, 2):
        if sort_key(a, va) < sort_key(b, vb):
            # Two losses may round to one, never the other way round.
            assert sort_key(a * scale, va) <= sort_key(b * scale, vb)


@pytest.mark.parametrize(
    ("loss", "m"),
    [(math.nan, 0.0), (math.inf, 0.0), (-math.inf, 0.0), (0.1, None), (0.1, math.nan)],
)
@pytest.mark.parametrize("goal", ["min", "max"])
def test_what_cannot_be_judged_is_last(loss: float, m: float | None, goal: Goal) -> None:
    found = report(step=1, value=loss, memorization=m, tau=1.0, goal=goal)
    assert found.objective == WORST
    assert found.objective > report(step=1, value=1e300, memorization=1e300, tau=1.0).objective
    if not math.isfinite(loss):
        assert report(step=1, value=loss, memorization=m, goal=goal).objective == WORST
    assert report(step=1, value=0.1, memorization=math.inf, tau=1.0, goal=goal).objective == WORST


def trials(*pairs: tuple[float, float | None], tau: float = 1.0) -> dict[str, TrialReport]:
    return {
        chr(ord("a") + i): report(step=1, value=loss, memorization=m, tau=tau)
        for i, (loss, m) in enumerate(pairs)
    }


def test_a_search_ends_with_the_best_governed_trial_and_why_the_lowest_loss_lost() -> None:
    end = conclude(trials((2.0, 0.5), (1.0, 3.0), (3.0, 0.1), (2.5, 0.6)))
    assert (end.best, end.leader) == ("a", "b")
    assert end.why == "it memorizes: M 3 is 2 above the limit"
    assert end.front == ("b", "a", "c")


@given(
    st.dictionaries(st.text("abcdef", min_size=1), st.tuples(st.integers(0, 4), st.integers(0, 4)))
)
def test_the_front_is_who_nobody_beats(pairs: dict[str, tuple[int, int]]) -> None:
    reports = {n: report(step=1, value=a, memorization=m, tau=1) for n, (a, m) in pairs.items()}
    expected = {
        name
        for name, (a, m) in pairs.items()
        if not any(x <= a and y <= m and (x, y) != (a, m) for x, y in pairs.values())
    }
    assert set(pareto_front(reports)) == expected
