"""A search on some workers, with steps as time: one worker does one step a tick.

The decisions are the product's (`govray.tune`); a trial's reports come from its curve. A race ends
when its budget of steps is used up, or nothing is left to run. A trial whose loss is not finite
fails, as a run of the product does.

The time to start a trial is not counted. ``starts`` counts starts, also after a pause.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from govray.tune.objective import TrialReport, conclude
from govray.tune.points import Point
from govray.tune.successive_halving import (
    Action,
    AsynchronousHalving,
    Bracket,
    TrialDecision,
)


@dataclass(frozen=True)
class Reached:
    """The governed loss of a search from some time on.

    Attributes:
        ticks: Steps that one worker has done by then.
        steps: Steps of all trials by then.
        starts: Trials started by then.
        loss: The lowest loss of the trials whose last report is within the limit, or infinity.
        best: Name of that trial; None without one.
        step: Steps of that trial; 0 without one.
    """

    ticks: int
    steps: int
    starts: int
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


class Halving:
    """ASHA in its promotion form, or in its stopping form."""

    def __init__(
        self, brackets: Sequence[Bracket], divisor: int, *, stopping: bool = False
    ) -> None:
        self._machine = AsynchronousHalving(brackets, divisor, stopping=stopping)
        self._names = iter(range(sum(bracket.trials for bracket in brackets)))
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


def race(
    method: Method,
    point: Callable[[int], Point],
    report: Callable[[Point, int], TrialReport],
    *,
    workers: int,
    reports: Sequence[int],
    budget: int,
) -> list[Reached]:
    """Run a search. Returns each time that its best trial or governed loss changed, and its end.

    The loss rises if the best trial goes on and memorizes beyond the limit.

    Args:
        method: Who decides.
        point: Trial number to its point.
        report: A point's report after a number of steps.
        workers: How many trials run at once.
        reports: The steps at which a trial reports, rising.
        budget: Steps of all trials at which the search ends.
    """
    found: list[Reached] = []
    last: dict[str, TrialReport] = {}
    now = Reached(0, 0, 0, math.inf)
    events = _events(method, point, report, workers, reports, budget)
    for ticks, steps, starts, name, said in events:
        last[name] = said
        now = replace(now, ticks=ticks, steps=steps, starts=starts)
        if name == now.best or (said.v == 0 and said.value <= now.loss):
            best = conclude(last).best
            loss, step = (last[best].value, last[best].step) if best else (math.inf, 0)
            now = replace(now, loss=loss, best=best, step=step)
        if not found or (now.loss, now.best) != (found[-1].loss, found[-1].best):
            found.append(now)
    return found if found and now == found[-1] else [*found, now]


def since(found: Sequence[Reached], target: float) -> Reached:
    """When the governed loss came down to ``target`` or below for good.

    Args:
        found: From `race`; it ends at or below the target.
        target: A governed loss.
    """
    above = [place for place, each in enumerate(found) if each.loss > target]
    return found[above[-1] + 1 if above else 0]


def _events(
    method: Method,
    point: Callable[[int], Point],
    report: Callable[[Point, int], TrialReport],
    workers: int,
    reports: Sequence[int],
    budget: int,
) -> Iterator[tuple[int, int, int, str, TrialReport]]:
    """Reports in order of time: ticks, steps and starts by then, trial, report."""
    lengths = [b - a for a, b in zip((0, *reports), reports, strict=False)]
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
        said = report(point(int(name)), reports[place[name]])
        place[name] += 1
        yield now, steps, starts, name, said
        if method.goes_on(name, said):
            heapq.heappush(busy, (now + lengths[place[name]], order, name))
