"""A search over curves that were trained before, on some workers, with steps as time.

One worker does one step a tick. The decisions are the product's (`govray.tune`); a trial's reports
come from its curve. A race ends when its budget of steps is used up, or nothing is left to run. A
trial whose loss is not finite fails, as a run of the product does. The time to start a trial is not
counted.

The arms differ in what they make of M:

* ``plain``: no limit, neither in the comparisons nor in the result;
* ``limit_at_end``: trials are compared by loss. M is measured where one ends its last rung, and the
  result must be within the limit;
* ``governed``: M is measured at every rung, and trials are compared by the governed objective, as
  `govray tune` does under a limit.

Random search runs the same points in the same order, each to its end, under the arm's limit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Protocol

from ray.tune.schedulers import AsyncHyperBandScheduler

from benchmarks.search_curves import Curves
from benchmarks.search_trials import DIVISOR
from govray.tune.objective import TrialReport, conclude, report
from govray.tune.recipe import TIME
from govray.tune.successive_halving import (
    Action,
    AsynchronousHalving,
    Bracket,
    TrialDecision,
)

ARMS = ("plain", "limit_at_end", "governed")
FORMS = ("stopping", "promotion")


@dataclass(frozen=True)
class Reached:
    """The governed loss of a search from some time on.

    Attributes:
        ticks: Steps that one worker has done by then.
        steps: Steps of all trials by then.
        loss: The lowest loss of the trials whose last report is within the limit, or infinity.
        best: Name of that trial; None without one.
        step: Steps of that trial; 0 without one.
    """

    ticks: int
    steps: int
    loss: float
    best: str | None = None
    step: int = 0


class Method(Protocol):
    """Who runs next, and who goes on."""

    def next(self) -> str | None:
        """A trial to start or to resume now, or None."""

    def goes_on(self, trial: str, said: TrialReport) -> bool:
        """Whether a trial that reported keeps its worker."""


class ToTheEnd:
    """Points one after another, each to its end: random search, grid search."""

    def __init__(self, points: int, steps: int) -> None:
        self._names = iter(range(points))
        self._steps = steps

    def next(self) -> str | None:
        """See `Method`."""
        number = next(self._names, None)
        return None if number is None else str(number)

    def goes_on(self, trial: str, said: TrialReport) -> bool:
        """See `Method`."""
        return said.step < self._steps and math.isfinite(said.value)


class RaysOwn:
    """ASHA on one bracket by Ray's scheduler, as `searchers.asha` has it without a limit."""

    def __init__(self, bracket: Bracket) -> None:
        self._names = iter(range(bracket.trials))
        self._scheduler = AsyncHyperBandScheduler(
            time_attr=TIME,
            max_t=bracket.rungs[-1],
            grace_period=bracket.rungs[0],
            reduction_factor=DIVISOR,
            brackets=1,
        )
        self._scheduler.set_search_properties("objective", "min")

    def next(self) -> str | None:
        """See `Method`."""
        number = next(self._names, None)
        if number is not None:
            self._scheduler.on_trial_add(None, _trial(str(number)))
        return None if number is None else str(number)

    def goes_on(self, trial: str, said: TrialReport) -> bool:
        """See `Method`."""
        if not math.isfinite(said.value):
            return False
        decision = self._scheduler.on_trial_result(None, _trial(trial), said.to_result())
        return bool(decision == AsyncHyperBandScheduler.CONTINUE)


def _trial(name: str) -> SimpleNamespace:
    return SimpleNamespace(trial_id=name)


class Halving:
    """ASHA in its promotion form, or in its stopping form."""

    def __init__(self, bracket: Bracket, *, stopping: bool) -> None:
        self._machine = AsynchronousHalving([bracket], DIVISOR, stopping=stopping)
        self._names = iter(range(bracket.trials))
        self._promoted: list[str] = []

    def next(self) -> str | None:
        """See `Method`."""
        if self._promoted:
            return self._promoted.pop(0)
        number = next(self._names, None)
        if number is not None:
            self._machine.add(str(number))
        return None if number is None else str(number)

    def goes_on(self, trial: str, said: TrialReport) -> bool:
        """See `Method`."""
        if not math.isfinite(said.value):
            self._resume(self._machine.died(trial))
            return False
        own, *others = self._machine.report(trial, said.step, said.objective)
        self._resume(others)
        return own.action is Action.CONTINUE

    def _resume(self, decisions: Sequence[TrialDecision]) -> None:
        self._promoted += [each.trial for each in decisions if each.action is Action.RESUME]


def target(curves: Curves, tau: float, share: float) -> float:
    """The loss that ``share`` of all points reach at their last rung, within the limit ``tau``."""
    ends = [_report(curves, place, -1, tau) for place in range(len(curves.curves))]
    losses = sorted(each.value if each.v == 0 else math.inf for each in ends)
    return losses[max(round(share * len(losses)), 1) - 1]


def race(
    curves: Curves,
    order: Sequence[int],
    *,
    arm: str,
    form: str | None,
    tau: float,
    workers: int,
    budget: int,
) -> list[Reached]:
    """Run a search. Returns each time that its best trial or governed loss changed, and its end.

    The loss rises if the best trial goes on and memorizes beyond the limit.

    Args:
        curves: Of the points.
        order: In which order their points are tried.
        arm: One of `ARMS`.
        form: One of `FORMS`; None for random search.
        tau: Limit of M; the plain arm has none.
        workers: How many trials run at once.
        budget: Steps of all trials at which the search ends.
    """
    limit = math.inf if arm == "plain" else tau

    def said(trial: int, rung: int) -> TrialReport:
        found = _report(curves, order[trial], rung, limit)
        if arm != "limit_at_end" or form is None:
            return found
        if rung < len(curves.rungs) - 1:
            found = report(step=found.step, value=found.value, memorization=None, tau=tau)
        return replace(found, objective=found.value)

    found: list[Reached] = []
    last: dict[str, TrialReport] = {}
    now = Reached(0, 0, math.inf)
    events = _events(_method(curves, arm, form), said, curves.rungs, workers, budget)
    for ticks, steps, name, told in events:
        last[name] = told
        now = replace(now, ticks=ticks, steps=steps)
        if name == now.best or (told.v == 0 and told.value <= now.loss):
            best = conclude(last).best
            loss, step = (last[best].value, last[best].step) if best else (math.inf, 0)
            now = replace(now, loss=loss, best=best, step=step)
        if not found or (now.loss, now.best) != (found[-1].loss, found[-1].best):
            found.append(now)
    return found if found and now == found[-1] else [*found, now]


def since(found: Sequence[Reached], target: float) -> Reached:
    """When the governed loss of a race came down to ``target`` for good; it ends so."""
    above = [place for place, each in enumerate(found) if each.loss > target]
    return found[above[-1] + 1 if above else 0]


def _method(curves: Curves, arm: str, form: str | None) -> Method:
    bracket = Bracket(curves.rungs, len(curves.curves))
    if form is None:
        return ToTheEnd(bracket.trials, curves.rungs[-1])
    if arm == "plain" and form == "stopping":
        return RaysOwn(bracket)
    return Halving(bracket, stopping=form == "stopping")


def _report(curves: Curves, place: int, rung: int, tau: float) -> TrialReport:
    found = curves.curves[place][rung]
    return report(
        step=curves.rungs[rung], value=found.loss, memorization=found.memorization, tau=tau
    )


def _events(
    method: Method,
    said: Callable[[int, int], TrialReport],
    rungs: Sequence[int],
    workers: int,
    budget: int,
) -> Iterator[tuple[int, int, str, TrialReport]]:
    """Reports in order of time: ticks and steps by then, trial, report."""
    lengths = [b - a for a, b in zip((0, *rungs), rungs, strict=False)]
    place: dict[str, int] = {}  # of each trial's next report
    busy: list[tuple[int, int, str]] = []  # (tick of the next report, order of start, trial)
    now = steps = starts = 0
    while True:
        while len(busy) < workers and (name := method.next()) is not None:
            starts += 1
            heapq.heappush(busy, (now + lengths[place.setdefault(name, 0)], starts, name))
        if not busy:
            return
        now, order, name = heapq.heappop(busy)
        steps += lengths[place[name]]
        if steps > budget:
            return
        told = said(int(name), place[name])
        place[name] += 1
        yield now, steps, name, told
        if method.goes_on(name, told):
            heapq.heappush(busy, (now + lengths[place[name]], order, name))
