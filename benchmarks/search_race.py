"""A search on so many workers, in the time of steps: one worker does one step a tick.

The decisions are the product's (`govray.tune`); what a trial reports comes from its curve. A race
ends when its budget of steps is used up, or nothing is left to run.

What it does not do: count what starting a trial costs. ``starts`` says how often one was started,
or started again after a pause.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Protocol

from govray.tune.asha import Action, Promotion
from govray.tune.brackets import Bracket
from govray.tune.objective import Report
from govray.tune.points import Point
from govray.tune.schedulers import CONTINUE, GovernedASHA


@dataclass(frozen=True)
class Reached:
    """The lowest governed loss so far, when it was reached.

    Attributes:
        ticks: Steps that one worker has done by then.
        steps: Steps of all trials by then.
        starts: Trials started by then.
        loss: The governed loss.
    """

    ticks: int
    steps: int
    starts: int
    loss: float


class Method(Protocol):
    """Who runs next, and who goes on."""

    def next(self) -> str | None:
        """A trial to start or to resume; None if there is none now."""

    def goes_on(self, trial: str, said: Report) -> bool:
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

    def goes_on(self, trial: str, said: Report) -> bool:
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

    def goes_on(self, trial: str, said: Report) -> bool:
        """See `Method`."""
        decision = self._scheduler.on_trial_result(None, _trial(trial), said.to_result())
        return decision == CONTINUE


def _trial(name: str) -> SimpleNamespace:
    return SimpleNamespace(trial_id=name)


class Promoting:
    """ASHA in its promotion form."""

    def __init__(self, brackets: Sequence[Bracket], divisor: int) -> None:
        self._machine = Promotion(brackets, divisor)
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

    def goes_on(self, trial: str, said: Report) -> bool:
        """See `Method`."""
        own, *others = self._machine.report(trial, said.step, said.objective)
        self._promoted += [each.trial for each in others if each.action is Action.RESUME]
        return own.action is Action.CONTINUE


def race(
    method: Method,
    point: Callable[[int], Point],
    report: Callable[[Point, int], Report],
    *,
    workers: int,
    every: int,
    budget: int,
) -> list[Reached]:
    """Run a search; returns each time that the lowest governed loss fell.

    Args:
        method: Who decides.
        point: Trial number to its point.
        report: A point's report after so many steps.
        workers: How many trials run at once.
        every: Steps between two reports of a trial.
        budget: Steps of all trials at which the search ends.
    """
    found: list[Reached] = []
    for ticks, steps, starts, said in _events(method, point, report, workers, every):
        if steps > budget:
            break
        if said.v == 0 and (not found or said.loss < found[-1].loss):
            found.append(Reached(ticks, steps, starts, said.loss))
    return found


def _events(
    method: Method,
    point: Callable[[int], Point],
    report: Callable[[Point, int], Report],
    workers: int,
    every: int,
) -> Iterator[tuple[int, int, int, Report]]:
    """Reports in the order of their time: ticks, steps and starts by then, and what was said."""
    done: dict[str, int] = {}  # steps of each trial
    busy: list[tuple[int, int, str]] = []  # (tick of the next report, order of start, trial)
    now = steps = starts = 0
    while True:
        while len(busy) < workers and (name := method.next()) is not None:
            starts += 1
            heapq.heappush(busy, (now + every, starts, name))
        if not busy:
            return
        now, order, name = heapq.heappop(busy)
        done[name] = done.get(name, 0) + every
        steps += every
        said = report(point(int(name)), done[name])
        yield now, steps, starts, said
        if method.goes_on(name, said):
            heapq.heappush(busy, (now + every, order, name))
