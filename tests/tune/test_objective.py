"""The governed order: a memorizer never wins, a scale changes nothing, what is unknown is last."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from govray.tune.objective import (
    WORST,
    Goal,
    TrialReport,
    conclude,
    governed,
    pareto_front,
    penalized,
    report,
    sort_key,
    violation,
)

losses = st.floats(-1e100, 1e100)
violations = st.floats(0, 1e100, exclude_min=True)
scales = st.floats(1e-50, 1e50)
finite = st.floats(allow_nan=False, allow_infinity=False)
anything = st.floats(allow_nan=True, allow_infinity=True)


@given(losses, violations, losses, scales)
def test_a_memorizer_never_beats_a_governed_trial_at_any_scale(
    memorizers: float, v: float, others: float, scale: float
) -> None:
    for better in (memorizers, memorizers * scale):
        for worse in (others, others * scale):
            assert sort_key(worse, 0.0) < sort_key(better, v)
            assert governed(worse, 0.0) < governed(better, v)


def test_a_penalty_lets_a_memorizer_win() -> None:
    """The control: what the order rules out, the weighted sum does at some scale."""
    assert penalized(0.1, 0.5, 1.0) < penalized(2.0, 0.0, 1.0)
    assert penalized(100 * 0.1, 0.5, 1.0) < penalized(100 * 2.0, 0.0, 1.0)
    assert penalized(0.01 * 0.1, 0.5, 1.0) > penalized(0.01 * 2.0, 0.0, 1.0)


@given(st.lists(st.tuples(losses, st.just(0.0) | violations), min_size=2, max_size=6), scales)
def test_the_order_is_that_of_the_rescaled_loss(
    trials: list[tuple[float, float]], scale: float
) -> None:
    for (a, va), (b, vb) in itertools.permutations(trials, 2):
        if sort_key(a, va) < sort_key(b, vb):
            # Two losses may round to one, never the other way round.
            assert sort_key(a * scale, va) <= sort_key(b * scale, vb)


@given(anything, st.just(0.0) | anything, anything, st.just(0.0) | anything)
def test_the_number_keeps_the_order(a: float, va: float, b: float, vb: float) -> None:
    if sort_key(a, va) <= sort_key(b, vb):
        assert governed(a, va) <= governed(b, vb)


@given(st.floats(-1e8, 1e8), st.floats(-1e8, 1e8))
def test_the_number_tells_metrics_apart_where_the_module_says_so(a: float, b: float) -> None:
    a, b = sorted((a, b))
    larger = max(abs(a), abs(b))
    assume(b - a > 4e-16 * (1 + larger) ** 2)
    assert governed(a, 0) < governed(b, 0)


@given(st.floats(0, 1e300))
def test_what_earlier_searches_recorded_stays(loss: float) -> None:
    earlier = min(loss / (1.0 + loss), math.nextafter(1.0, 0.0))
    assert report(step=1, value=loss, memorization=0.0, tau=1.0).objective == earlier


@given(finite, st.none() | anything)
def test_without_a_limit_the_number_is_the_metric(value: float, m: float | None) -> None:
    found = report(step=1, value=value, memorization=m)
    assert (found.objective, found.v) == (value, 0.0)
    found = report(step=1, value=value, memorization=m, goal="max")
    assert (found.value, found.objective) == (value, -value)


@given(finite, violations | st.just(0.0), finite, violations | st.just(0.0))
def test_a_maximum_is_the_minimum_of_what_is_negated(
    a: float, va: float, b: float, vb: float
) -> None:
    """The order by a metric that is better when higher, with and without a limit."""
    for tau in (1.0, math.inf):
        high, other = (
            report(step=1, value=value, memorization=1.0 + v, tau=tau, goal="max").objective
            for value, v in ((a, va), (b, vb))
        )
        low, another = (
            report(step=1, value=-value, memorization=1.0 + v, tau=tau).objective
            for value, v in ((a, va), (b, vb))
        )
        assert (high, other) == (low, another)
    end = conclude(
        {
            "a": report(step=1, value=a, memorization=None, goal="max"),
            "b": report(step=1, value=b, memorization=None, goal="max"),
        },
        "max",
    )
    assert end.best == end.leader == ("b" if b > a else "a")


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


def test_a_loss_that_is_no_number_is_last_in_every_form() -> None:
    assert report(step=1, value=math.nan, memorization=None).objective == WORST
    assert report(step=1, value=1, memorization=None, tau=1, penalty=0).objective == WORST
    assert report(step=1, value=2, memorization=3, tau=1, penalty=0.5).objective == 3.0


def test_the_violation() -> None:
    assert violation(3.0, 1.0) == 2.0
    assert violation(1.0, 1.0) == 0.0
    assert violation(-5.0, 1.0) == 0.0
    assert violation(None, math.inf) == 0.0


def test_a_result_of_ray_tune_has_no_memorization_that_nothing_measured() -> None:
    told = report(step=7, value=1.5, memorization=0.25, tau=0.5).to_result()
    assert told == {"step": 7, "value": 1.5, "memorization": 0.25, "v": 0.0, "objective": 0.6}
    assert told.keys() - report(
        step=7, value=1.5, memorization=None, tau=0.5
    ).to_result().keys() == {"memorization"}


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


def test_a_search_whose_lowest_loss_is_governed_has_nothing_to_explain() -> None:
    end = conclude(trials((1.0, 0.5), (2.0, 3.0)))
    assert (end.best, end.leader, end.why) == ("a", "a", None)


def test_the_front_of_a_metric_that_is_better_when_higher() -> None:
    reports = {
        name: report(step=1, value=value, memorization=m, tau=1.0, goal="max")
        for name, value, m in [("a", 0.5, 0.5), ("b", 0.9, 3.0), ("c", 0.4, 0.1), ("d", 0.4, 0.6)]
    }
    end = conclude(reports, "max")
    assert (end.best, end.leader) == ("a", "b")
    assert end.why == "it memorizes: M 3 is 2 above the limit"
    assert end.front == ("b", "a", "c")


def test_a_search_may_have_no_winner() -> None:
    end = conclude(trials((1.0, 5.0), (2.0, None)))
    assert (end.best, end.leader) == (None, "a")
    assert conclude(trials((math.nan, 0.0))).leader is None
    unmeasured = conclude(trials((1.0, None), (2.0, 0.5)))
    assert (unmeasured.best, unmeasured.why) == ("b", "its memorization was not measured")


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
