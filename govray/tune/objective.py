"""Which trial is better: constrained domination of a metric by memorization, also as one number.

A search minimizes or maximizes a metric that trials report, such as a loss or an accuracy. The
number is penalized by memorization. Of two trials, the one within the limit of memorization wins.
Between two within it, the better metric wins. Between two above it, the smaller violation v =
max(0, M - tau) wins. So a trial that memorizes never beats one that does not, whatever the metric's
scale. Rescaling changes no rank.

Ray Tune's schedulers need one number to minimize. With x the metric, or minus the metric
where the goal is max, it is ``x / (1 + |x|)`` if v = 0, and ``1 + v`` otherwise. The first lies
between -1 and 1. It keeps the order, except that two values tie where floats round to one. That can
happen if they are closer than about 4e-16 (1 + |x|)^2, so 1e-12 apart at x = 50; above about 1e8
only the magnitude counts. With tau infinite the number is x itself, and nothing ties.

It fails closed: a limit without a measurement, an infinite metric, and NaN rank last.

The order is that of Deb, "An efficient constraint handling method for genetic algorithms" (2000).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Goal = Literal["min", "max"]
"""The direction in which a metric is better."""

WORST = math.inf
"""The objective of a trial that cannot be judged."""

_BELOW_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class TrialReport:
    """One report of a trial.

    Attributes:
        value: The search's metric, in its own unit.
        memorization: M, in the unit that the search declares; None if not measured.
        v: The violation max(0, M - tau).
        objective: The number that the search minimizes.
    """

    step: int
    value: float
    memorization: float | None
    v: float
    objective: float

    def to_result(self) -> dict[str, float]:
        """The fields as in Ray Tune's result; M is absent if not measured."""
        found = {
            "step": self.step,
            "value": self.value,
            "memorization": self.memorization,
            "v": self.v,
            "objective": self.objective,
        }
        return {name: value for name, value in found.items() if value is not None}


def report(
    *,
    step: int,
    value: float,
    memorization: float | None,
    tau: float = math.inf,
    goal: Goal = "min",
) -> TrialReport:
    """Judge one measurement. ``tau``: the limit of M; infinite for none."""
    v = violation(memorization, tau)
    x = minimized(value, goal)
    objective = x if math.isinf(tau) else governed(x, v)
    return TrialReport(
        step=step,
        value=value,
        memorization=memorization,
        v=v,
        objective=objective if math.isfinite(x) else WORST,
    )


def minimized(value: float, goal: Goal) -> float:
    """The metric as a number of which less is better."""
    return value if goal == "min" else -value


def violation(memorization: float | None, tau: float) -> float:
    """How far M is above the limit: 0 within it or without one, infinite if M is unknown."""
    if math.isinf(tau):
        return 0.0
    if memorization is None or math.isnan(memorization):
        return math.inf
    return max(0.0, memorization - tau)


def sort_key(x: float, v: float) -> tuple[bool, float]:
    """The governed order as a sort key: less is better. ``x`` is `minimized`."""
    if not (math.isfinite(x) and math.isfinite(v)):
        return (True, WORST)
    return (v > 0, v if v > 0 else x)


def governed(x: float, v: float) -> float:
    """The governed order as one number, above -1: less is better. ``x`` is `minimized`."""
    above, value = sort_key(x, v)
    if above:
        return 1.0 + value
    # The bounds keep the two sides apart where floats would round to the same value.
    return max(min(value / (1.0 + abs(value)), _BELOW_ONE), -_BELOW_ONE)


@dataclass(frozen=True)
class Conclusion:
    """How a search ends.

    Attributes:
        best: The best trial within the limit, if any.
        front: Trials that no other beats in both metric and M, the best metric first.
        leader: The trial of the best metric, whatever it memorizes; None if no trial has one.
        why: Why the leader is not the best, if it isn't.
    """

    best: str | None
    front: tuple[str, ...]
    leader: str | None
    why: str | None


def conclude(reports: Mapping[str, TrialReport], goal: Goal = "min") -> Conclusion:
    """Judge the last reports of all trials, by trial name; ties go to the name that sorts first."""
    usable = {name: each for name, each in sorted(reports.items()) if math.isfinite(each.value)}
    within = {name: each for name, each in usable.items() if each.v == 0}

    def by_metric(name: str) -> float:
        return minimized(usable[name].value, goal)

    best = min(within, key=by_metric, default=None)
    leader = min(usable, key=by_metric, default=None)
    why = None
    if leader is not None and leader != best:
        lost = usable[leader]
        why = (
            "its memorization was not measured"
            if lost.memorization is None or math.isnan(lost.memorization)
            else f"it memorizes: M {lost.memorization:.4g} is {lost.v:.4g} above the limit"
        )
    return Conclusion(best, pareto_front(usable, goal), leader, why)


def pareto_front(reports: Mapping[str, TrialReport], goal: Goal = "min") -> tuple[str, ...]:
    """The trials that no other beats in metric and M at once, the best metric first.

    Trials whose metric or M is NaN are left out. Without a limit M may be unknown everywhere; then
    the front is empty.
    """
    measured = {
        name: (minimized(each.value, goal), each.memorization)
        for name, each in reports.items()
        if each.memorization is not None
        and math.isfinite(each.value)
        and math.isfinite(each.memorization)
    }
    front: list[str] = []
    least: tuple[float, float] | None = None  # the front's lowest M so far, and its metric
    for name, (x, m) in sorted(measured.items(), key=lambda item: (item[1], item[0])):
        if least is None or m < least[1] or (x, m) == least:
            front.append(name)
            least = (x, m)
    return tuple(front)
