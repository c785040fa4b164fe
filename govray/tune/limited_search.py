"""Optuna over a search's space, with the limit of memorization as a constraint of its sampler.

Optuna is told the metric, and beside it v, how far M is above the limit. Its sampler takes points
of v = 0 for better than all others, and among those the smaller v. So it learns where the limit
lies, and no scale of ours stands between the metric and what it learns.

Names are drawn one after the other, each branch of a space with conditions on its own. Ray's
`OptunaSearch` learns nothing then from a point that it did not draw itself. A search that goes on
may have such points: here they are learned from too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from ray.tune.search.optuna import OptunaSearch, optuna_search

from govray.tune.objective import WORST, minimized
from govray.tune.ray_space import domains
from govray.tune.recipe import METRIC
from govray.tune.search_config import Search
from govray.tune.space import Choice, Dimension, Integer, Log, OneOf, Uniform, active

MEMORIZATION = "memorization"
"""Optuna's name of the constraint."""


class LimitedSearch(OptunaSearch):
    """Draws points of a search, and learns from what trials report at their end."""

    def __init__(self, search: Search) -> None:
        draw = partial(draw_branch, search.space)
        super().__init__(draw, metric=METRIC, mode="min", seed=search.seed)
        self._search = search

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Nothing: a trial is judged by its last report."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Called by Ray Tune."""
        if result and METRIC in result:
            value, constraints = self._told(result)
            for name, v in constraints.items():
                self._ot_trials[trial_id].set_constraint(name, v)
            result = {METRIC: value}
        super().on_trial_complete(trial_id, result, error)

    def learn(self, values: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Learn from a point that was drawn elsewhere, and its last report."""
        value, constraints = self._told(result)
        study: Any = self._ot_study
        optuna: Any = optuna_search.ot  # type: ignore[attr-defined]  # Ray imports it so
        study.add_trial(
            optuna.trial.create_trial(
                value=value,
                params=dict(values),
                distributions=self.convert_search_space(
                    domains(active(self._search.space, values))
                ),
                constraints=constraints,
            )
        )

    def _told(self, result: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
        """What Optuna minimizes, and what must not be above 0."""
        search, limit = self._search, self._search.memorization
        if limit is None or math.isinf(limit.tau):
            return float(result[METRIC]), {}
        x = minimized(float(result["value"]), search.goal)
        return x if math.isfinite(x) else WORST, {MEMORIZATION: float(result["v"])}


def draw_branch(space: Mapping[str, Dimension], trial: Any) -> None:
    """Let Optuna's ``trial`` draw a point of a tree, through its ``suggest_`` methods."""
    for name, dimension in space.items():
        match dimension:
            case Log(log=(low, high)):
                trial.suggest_float(name, low, high, log=True)
            case Uniform(uniform=(low, high)):
                trial.suggest_float(name, low, high)
            case Integer(int=(low, high)):
                trial.suggest_int(name, low, high)
            case Choice(choice=values):
                trial.suggest_categorical(name, values)
            case OneOf():
                chosen = trial.suggest_categorical(name, dimension.ends)
                draw_branch(dimension.below(chosen), trial)
