"""A search on some workers, with steps as time: one worker does one step a tick.

The decisions are the product's (`govray.tune`); a trial's reports come from its curve. A race ends
when its budget of steps is used up, or nothing is left to run.

The time to start a trial is not counted. ``starts`` counts starts, also after a pause.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Protocol

from govray.tune.brackets import Bracket, Mode, adaptive
from govray.tune.dry_run import trials_ending
from govray.tune.objective import TrialReport, conclude
from govray.tune.points import Point
from govray.tune.schedulers import CONTINUE, GovernedASHA
from govray.tune.successive_halving import Action, AsynchronousHalving


@dataclass(frozen=True)
class Reached:
    """The governed loss of a search from some time on.

    Attributes:
        ticks: Steps that one worker has done by then.
        steps: Steps of all trials by then.
        starts: Trials started by then.
        loss: The lowest loss of the trials whose last report is within the limit, or infinity.
    """

    ticks: int
    steps: int
    starts: int
    loss: float


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
        return said.step < self._steps


class Stopping:
    """ASHA in its stopping form, by the scheduler that Ray Tune is given."""

    def __init__(self, brackets: Sequence[Bracket], divisor: int) -> None:
        self._names = iter(range(sum(bracket.trials for bracket in brackets)))
        self._scheduler = GovernedASHA(brackets, divisor)
        self._scheduler.set_search_properties("objective", "min")

    def next(self) -> str | None:
        """See `Method`."""
        number = next(self._names, None)
        if number is not None:
            self._scheduler.on_trial_add(None, _trial(str(number)))
        return None if number is None else str(number)

    def goes_on(self, trial: str, said: TrialReport) -> bool:
        """See `Method`."""
        decision = self._scheduler.on_trial_result(None, _trial(trial), said.to_result())
        return decision == CONTINUE


def _trial(name: str) -> SimpleNamespace:
    return SimpleNamespace(trial_id=name)


class Promoting:
    """ASHA in its promotion form."""

    def __init__(self, brackets: Sequence[Bracket], divisor: int) -> None:
        self._machine = AsynchronousHalving(brackets, divisor)
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
        own, *others = self._machine.report(trial, said.step, said.objective)
        self._promoted += [each.trial for each in others if each.action is Action.RESUME]
        return own.action is Action.CONTINUE


def ladders(
    steps: int, *, full_trials: int, divisor: int, rungs: int, mode: Mode = "standard"
) -> tuple[Bracket, ...]:
    """The brackets with the most trials that a budget allows, as planned.

    Args:
        steps: Of a trial that runs to its end.
        full_trials: Number of complete trials that the budget allows.
        divisor: One trial in this many goes on.
        rungs: Most rungs of a bracket.
        mode: How early the brackets stop trials.
    """
    found: tuple[Bracket, ...] = ()
    for trials in range(1, full_trials * divisor**rungs):
        brackets = adaptive(
            max_trials=trials,
            max_time=steps,
            divisor=divisor,
            max_rungs=rungs,
            mode=mode,
        )
        planned = sum(step * count for step, count in trials_ending(brackets, divisor).items())
        if planned > full_trials * steps:
            break
        found = brackets
    return found


def race(
    method: Method,
    point: Callable[[int], Point],
    report: Callable[[Point, int], TrialReport],
    *,
    workers: int,
    every: int,
    budget: int,
) -> list[Reached]:
    """Run a search. Returns each time that its governed loss fell or rose.

    It rises if the best trial goes on and memorizes beyond the limit.

    Args:
        method: Who decides.
        point: Trial number to its point.
        report: A point's report after a number of steps.
        workers: How many trials run at once.
        every: Steps between two reports of a trial.
        budget: Steps of all trials at which the search ends.
    """
    found: list[Reached] = []
    last: dict[str, TrialReport] = {}
    for ticks, steps, starts, name, said in _events(method, point, report, workers, every, budget):
        last[name] = said
        best = conclude(last).best
        loss = math.inf if best is None else last[best].value
        if not found or loss != found[-1].loss:
            found.append(Reached(ticks, steps, starts, loss))
    return found


def since(found: Sequence[Reached], target: float) -> Reached:
    """When the governed loss came down to ``target`` or below for good.

    Args:
        found: From `race`; it ends at or below the target.
        target: A governed loss.
    """
    above = [place for place, each in enumerate(found) if each.loss > target]
    return found[above[-1] + 1 if above else 0]


def last_reports(
    method: Method,
    point: Callable[[int], Point],
    report: Callable[[Point, int], TrialReport],
    *,
    workers: int,
    every: int,
    budget: int,
) -> dict[str, TrialReport]:
    """Run a search, with the arguments of `race`. Returns each trial's last report."""
    events = _events(method, point, report, workers, every, budget)
    return {name: said for *_, name, said in events}


def _events(
    method: Method,
    point: Callable[[int], Point],
    report: Callable[[Point, int], TrialReport],
    workers: int,
    every: int,
    budget: int,
) -> Iterator[tuple[int, int, int, str, TrialReport]]:
    """Reports in order of time: ticks, steps and starts by then, trial, report."""
    done: dict[str, int] = {}  # steps of each trial
    busy: list[tuple[int, int, str]] = []  # (tick of the next report, order of start, trial)
    now = steps = starts = 0
    while True:
        while len(busy) < workers and (name := method.next()) is not None:
            starts += 1
            heapq.heappush(busy, (now + every, starts, name))
        if not busy or steps + every > budget:
            return
        now, order, name = heapq.heappop(busy)
        done[name] = done.get(name, 0) + every
        steps += every
        said = report(point(int(name)), done[name])
        yield now, steps, starts, name, said
        if method.goes_on(name, said):
            heapq.heappush(busy, (now + every, order, name))
