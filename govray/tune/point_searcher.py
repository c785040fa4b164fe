"""A searcher for Ray Tune over points known beforehand: random ones, or a grid.

Invariants:

* At most ``concurrent`` trials run at once. Paused trials don't count, so a search that pauses goes
  on drawing. (Ray's own limiter counts them, and would stop drawing.)
* A trial with invalid hyperparameters is replaced by the next point, at most ``trials`` times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ray import tune
from ray.tune.schedulers import TrialScheduler

from govray.tune.points import Point, draw
from govray.tune.recipe import INVALID, METRIC, Recipe
from govray.tune.search_config import SearchFile


class Points(tune.search.Searcher):
    """Gives points to trials, in order. ``point``: trial number to its point, or None beyond the
    last. ``trials``: the number of valid trials."""

    def __init__(self, point: Callable[[int], Point | None], trials: int, concurrent: int) -> None:
        super().__init__(metric=METRIC, mode="min")
        self._point = point
        self._trials = trials
        self.concurrent = concurrent
        self._dealt = 0
        self._invalid = 0
        self._live: set[str] = set()
        self._paused: set[str] = set()

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Nothing is learned from results, so any metric is accepted."""
        return True

    @property
    def spent(self) -> bool:
        """Whether no more points will be given, even if trials turn out invalid."""
        return self._dealt >= 2 * self._trials or self._point(self._dealt) is None

    @property
    def wanted(self) -> bool:
        """Whether a further point is to be given, once there is room."""
        return self._dealt < self._trials + self._invalid and not self.spent

    def suggest(self, trial_id: str) -> Any:
        """The next point; None for not now; `FINISHED` once nothing can follow."""
        wanted = self.wanted
        if wanted and len(self._live - self._paused) < self.concurrent:
            point = self._point(self._dealt)
            self._dealt += 1
            self._live.add(trial_id)
            return point
        return None if wanted or self._live else tune.search.Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if trial_id in self._live and result and INVALID in result:
            self._invalid += 1
        self._live.discard(trial_id)
        self._paused.discard(trial_id)

    def pause(self, trial_id: str) -> None:
        self._paused.add(trial_id)

    def wake(self, trial_id: str) -> None:
        self._live.add(trial_id)
        self._paused.discard(trial_id)


def from_sequence(points: Iterable[Point]) -> Callable[[int], Point | None]:
    dealt = list(points)
    return lambda number: dealt[number] if number < len(dealt) else None


def drawn_points(file: SearchFile, concurrent: int) -> Points:
    """``max_trials`` points of the space, drawn from the seed."""
    search = file.search
    return Points(partial(draw, search.space, search.seed), search.max_trials, concurrent)


def dealt(points: Points, scheduler: TrialScheduler | None = None, **how: Any) -> Recipe:
    """The recipe of a search whose scheduler compares these points; without one, each runs to its
    end. ``how``: further fields of a `Recipe`."""
    config = tune.TuneConfig(
        metric=METRIC, mode="min", search_alg=points, scheduler=scheduler, num_samples=-1
    )
    return Recipe({}, config, **how)
