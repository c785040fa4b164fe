"""What a search costs, before it runs: trials, rungs, and the budget in steps.

The plan of successive halving has one trial in ``divisor``, and at least one, going on from each
rung. An asynchronous search decides before all have reported. The first trial at a rung always goes
on, and so does each that is better than all before it. So the budget is told twice: what is
expected of results in no order, by simulation, and the most that any order takes. Early stopping
can only make it cheaper.

A search that its own settings make another one says so in ``void``, and is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from govray.errors import UsageError
from govray.tune.points import Point, draw, grid, grid_size
from govray.tune.search_config import SearchFile
from govray.tune.successive_halving import (
    Action,
    AsynchronousHalving,
    Bracket,
    Mode,
    adaptive,
    places,
)


@dataclass(frozen=True)
class Preview:
    """The plan of a search.

    Attributes:
        ends: Step to how many trials end there by the plan, rising.
        expected: Steps of all trials, if results come in no order.
        most: Steps that no order of results exceeds, if no trial fails.
        points: The first points, if they don't depend on results; otherwise empty.
        void: Why the settings make this another search than the one named; None if they don't.
    """

    brackets: tuple[Bracket, ...]
    ends: dict[int, int]
    expected: int
    most: int
    points: tuple[Point, ...]
    void: str | None = None

    @property
    def trials(self) -> int:
        return sum(self.ends.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "trials": self.trials,
            "brackets": [
                {"rungs": list(each.rungs), "trials": each.trials} for each in self.brackets
            ],
            "ends": [{"step": step, "trials": trials} for step, trials in self.ends.items()],
            "expectedSteps": self.expected,
            "mostSteps": self.most,
            "points": list(self.points),
            "void": self.void,
        }

    def require_method(self) -> None:
        """Raises ``UsageError`` where the settings make it another search than the one named."""
        if self.void is not None:
            raise UsageError(self.void, where="search", do="Change them, or name searcher: random")


SHOWN = 5
"""How many points a preview has."""


STARTUP = 10
"""Points that Optuna draws at random before it learns."""


def halving(file: SearchFile, mode: Mode | None = None, *, synchronous: bool = False) -> Preview:
    """Successive halving over random points, in the file's mode or the one given.
    ``synchronous``: whether no trial goes on before its rung is complete."""
    search = file.search
    brackets = adaptive(
        max_trials=search.max_trials,
        max_time=file.max_time,
        divisor=search.divisor,
        max_rungs=search.max_rungs,
        mode=mode or search.mode,
    )
    ends = trials_ending(brackets, search.divisor)
    planned = sum(step * trials for step, trials in ends.items())
    stopping = search.form == "stopping"
    return Preview(
        brackets=brackets,
        ends=ends,
        expected=planned
        if synchronous
        else sum(expected_steps(each, search.divisor, stopping=stopping) for each in brackets),
        most=planned if synchronous else sum(each.rungs[-1] * each.trials for each in brackets),
        points=_random_points(file),
        void=None
        if any(each.trials > 1 and len(each.rungs) > 1 for each in brackets)
        else f"with max_trials: {search.max_trials}, max_rungs: {search.max_rungs} and divisor: "
        f"{search.divisor} no trials are compared before their end",
    )


def random_points(file: SearchFile) -> Preview:
    return _whole(file, file.search.max_trials, _random_points(file))


def population(file: SearchFile) -> Preview:
    """Random points that all run to their end, and are compared on the way."""
    search, end = file.search, file.max_time
    interval = max(end // search.max_rungs, 1)
    compared = tuple(range(interval, end, interval))
    void = None
    if search.max_trials < 2:
        void = "with max_trials: 1 there is no trial to take over"
    elif not compared:
        void = (
            f"with max_rungs: {search.max_rungs} of {end} steps trials are compared at no step "
            "before their end, so none takes over another"
        )
    found = _whole(file, search.max_trials, _random_points(file))
    return replace(found, brackets=(Bracket((*compared, end), search.max_trials),), void=void)


def grid_points(file: SearchFile) -> Preview:
    """Every point of the grid, run to its end; raises as `points.grid`."""
    points = [point for point, _ in zip(grid(file.search), range(SHOWN), strict=False)]
    return _whole(file, grid_size(file.search), points)


def learned_points(file: SearchFile) -> Preview:
    """Points that depend on results, each run to its end."""
    trials, void = file.search.max_trials, None
    if trials <= STARTUP:
        void = f"with max_trials: {trials} nothing is learnt: the first {STARTUP} points are random"
    return replace(_whole(file, trials, ()), void=void)


def trials_ending(brackets: Iterable[Bracket], divisor: int) -> dict[int, int]:
    """Step to how many trials end there if one in ``divisor`` goes on, and at least one."""
    ends: Counter[int] = Counter()
    for bracket in brackets:
        left = bracket.trials
        for step in bracket.rungs[:-1]:
            going_on = min(places(left, divisor), left)
            ends[step] += left - going_on
            left = going_on
        ends[bracket.rungs[-1]] += left
    return {step: ends[step] for step in sorted(ends) if ends[step]}


_MOST_SIMULATED = 400
_SIMULATED = 4000


def expected_steps(bracket: Bracket, divisor: int, *, stopping: bool) -> int:
    """Steps of all trials of a bracket, on average over results that come in no order.

    A trial keeps its place among the others at all rungs. Many trials are told from fewer.
    """
    trials = min(bracket.trials, _MOST_SIMULATED)
    if not trials:
        return 0
    random, times = Random(0), max(4, _SIMULATED // trials)  # noqa: S311
    total = 0
    for _ in range(times):
        losses = [float(each) for each in range(trials)]
        random.shuffle(losses)
        total += simulated_steps((replace(bracket, trials=trials),), divisor, losses, stopping)
    return round(total / times * bracket.trials / trials)


def simulated_steps(
    brackets: tuple[Bracket, ...], divisor: int, losses: Sequence[float], stopping: bool
) -> int:
    """Steps that trials take of which each has its loss at all rungs, and which come one after
    another."""
    machine = AsynchronousHalving(brackets, divisor, stopping=stopping)
    running = [f"{number}" for number in range(len(losses))][::-1]
    while running:
        trial = running.pop()
        machine.add(trial)
        if int(trial) == len(losses) - 1 and not machine.closed:
            machine.close()
        at = machine.trials[trial]
        step = brackets[at.bracket].rungs[at.rung]
        for decision in machine.report(trial, step, losses[int(trial)]):
            if decision.action in (Action.CONTINUE, Action.RESUME):
                running.append(decision.trial)
    return sum(each.step for each in machine.trials.values())


def _whole(file: SearchFile, trials: int, points: Iterable[Point]) -> Preview:
    """Trials that all run to their end."""
    end = file.max_time
    brackets = (Bracket((end,), trials),)
    return Preview(brackets, {end: trials}, end * trials, end * trials, tuple(points))


def _random_points(file: SearchFile) -> tuple[Point, ...]:
    search = file.search
    count = min(SHOWN, search.max_trials)
    return tuple(draw(search.space, search.seed, number) for number in range(count))
