"""Searches over curves that were trained before: each order of the points is another search.

The arms differ in what they make of M:

* ``plain``: no limit, neither in the comparisons nor in the result;
* ``limit_at_end``: trials are compared by loss. M is measured where one ends its last rung, and the
  result must be within the limit;
* ``governed``: M is measured at every rung, and trials are compared by the governed objective, as
  `govray tune` does under a limit.

Random search runs the same points in the same order, each to its end, under the arm's limit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks.search_cache import Cached
from benchmarks.search_race import Halving, Method, Reached, ToTheEnd, race
from govray.tune.objective import TrialReport, report
from govray.tune.points import Point
from govray.tune.successive_halving import Bracket

ARMS = ("plain", "limit_at_end", "governed")
FORMS = ("stopping", "promotion")


def orders(count: int, curves: int) -> list[tuple[int, ...]]:
    """Seeds 1 … ``count``: in which order each has the curves."""
    found = []
    for seed in range(1, count + 1):
        numbers = list(range(curves))
        random.Random(seed).shuffle(numbers)  # noqa: S311 — repeatable
        found.append(tuple(numbers))
    return found


def at(cached: Cached, rung: int, tau: float) -> list[TrialReport]:
    """Each curve's report at one rung, by place, under the limit ``tau``."""
    return [_report(cached, number, rung, tau) for number in range(size(cached))]


def size(cached: Cached) -> int:
    """How many curves there are."""
    return len(cached.curves)


def target(cached: Cached, tau: float, share: float) -> float:
    """The loss that ``share`` of all points reach at their last rung, within the limit ``tau``."""
    losses = sorted(each.value if each.v == 0 else math.inf for each in at(cached, -1, tau))
    return losses[max(round(share * len(losses)), 1) - 1]


def searched(
    cached: Cached,
    order: tuple[int, ...],
    *,
    arm: str,
    form: str | None,
    tau: float,
    divisor: int,
    workers: int,
    budget: int,
) -> list[Reached]:
    """One search.

    Args:
        cached: The curves.
        order: In which order their points are tried.
        arm: One of `ARMS`.
        form: One of `FORMS`; None for random search.
        tau: Limit of M; the plain arm has none.
        divisor: One trial in this many goes on.
        workers: How many trials run at once.
        budget: Steps of all trials at which the search ends.
    """
    place = {step: number for number, step in enumerate(cached.rungs)}
    limit = math.inf if arm == "plain" else tau

    def said(point: Point, step: int) -> TrialReport:
        found = _report(cached, order[point["number"]], place[step], limit)
        if arm != "limit_at_end" or form is None:
            return found
        if step < cached.rungs[-1]:
            found = report(step=step, value=found.value, memorization=None, tau=tau)
        return replace(found, objective=found.value)

    return race(
        _method(cached, form, divisor),
        lambda number: {"number": number},
        said,
        workers=workers,
        reports=cached.rungs,
        budget=budget,
    )


def _method(cached: Cached, form: str | None, divisor: int) -> Method:
    bracket = Bracket(cached.rungs, size(cached))
    made: Mapping[str | None, Callable[[], Method]] = {
        None: lambda: ToTheEnd(size(cached), cached.rungs[-1]),
        "stopping": lambda: Halving([bracket], divisor, stopping=True),
        "promotion": lambda: Halving([bracket], divisor),
    }
    return made[form]()


def _report(cached: Cached, number: int, rung: int, tau: float) -> TrialReport:
    found = cached.curves[number][rung]
    return report(
        step=cached.rungs[rung], value=found.loss, memorization=found.memorization, tau=tau
    )
