"""What a search costs, before it runs: trials, rungs, and the budget in steps.

The plan of successive halving has one trial in ``divisor``, and at least one, going on from each
rung. An asynchronous search may promote a few more, since it decides before all have reported. No
search exceeds ``most``. Early stopping can only make it cheaper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from govray.tune.points import Point, draw, grid, grid_size
from govray.tune.search_config import SearchFile
from govray.tune.successive_halving import Bracket, Mode, adaptive, places


@dataclass(frozen=True)
class Preview:
    """The plan of a search.

    Attributes:
        ends: Step to how many trials end there, rising.
        most: Steps of all trials, if every one runs to its end.
        points: The first points, if they don't depend on results; otherwise empty.
    """

    brackets: tuple[Bracket, ...]
    ends: dict[int, int]
    most: int
    points: tuple[Point, ...]

    @property
    def trials(self) -> int:
        return sum(self.ends.values())

    @property
    def budget(self) -> int:
        """Steps of all trials, as planned."""
        return sum(step * trials for step, trials in self.ends.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "trials": self.trials,
            "brackets": [
                {"rungs": list(each.rungs), "trials": each.trials} for each in self.brackets
            ],
            "ends": [{"step": step, "trials": trials} for step, trials in self.ends.items()],
            "budgetSteps": self.budget,
            "mostSteps": self.most,
            "points": list(self.points),
        }


SHOWN = 5
"""How many points a preview has."""


def halving(file: SearchFile, mode: Mode | None = None) -> Preview:
    """Successive halving over random points, in the file's mode or the one given."""
    search = file.search
    brackets = adaptive(
        max_trials=search.max_trials,
        max_time=file.max_time,
        divisor=search.divisor,
        max_rungs=search.max_rungs,
        mode=mode or search.mode,
    )
    return _preview(brackets, search.divisor, _random_points(file))


def random_points(file: SearchFile) -> Preview:
    return _preview(_one(file, file.search.max_trials), file.search.divisor, _random_points(file))


def grid_points(file: SearchFile) -> Preview:
    """Every point of the grid, run to its end; raises as `points.grid`."""
    points = [point for point, _ in zip(grid(file.search), range(SHOWN), strict=False)]
    return _preview(_one(file, grid_size(file.search)), file.search.divisor, points)


def learned_points(file: SearchFile) -> Preview:
    """Points that depend on results, each run to its end."""
    return _preview(_one(file, file.search.max_trials), file.search.divisor, ())


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


def _preview(brackets: tuple[Bracket, ...], divisor: int, points: Iterable[Point]) -> Preview:
    most = sum(each.rungs[-1] * each.trials for each in brackets)
    return Preview(brackets, trials_ending(brackets, divisor), most, tuple(points))


def _one(file: SearchFile, trials: int) -> tuple[Bracket, ...]:
    return (Bracket((file.max_time,), trials),)


def _random_points(file: SearchFile) -> list[Point]:
    search = file.search
    count = min(SHOWN, search.max_trials)
    return [draw(search.space, search.seed, number) for number in range(count)]
