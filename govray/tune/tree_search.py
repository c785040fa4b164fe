"""Optuna over a space with conditions: it draws the names of one branch, one after the other.

Ray's `OptunaSearch` takes such a space as a function, but then learns nothing from a point that it
did not draw itself. A search that goes on may have such points: here they are learned from too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ray.tune.search.optuna import OptunaSearch, optuna_search

from govray.tune.ray_space import domains
from govray.tune.recipe import METRIC
from govray.tune.space import Choice, Dimension, Integer, Log, OneOf, Uniform, active


class TreeSearch(OptunaSearch):
    def __init__(self, space: Mapping[str, Dimension], seed: int) -> None:
        super().__init__(partial(draw_branch, space), metric=METRIC, mode="min", seed=seed)
        self._tree = space

    def add_evaluated_point(
        self, parameters: dict[str, Any], value: float, *args: Any, **kwargs: Any
    ) -> None:
        """Learn from a point that was drawn elsewhere."""
        study: Any = self._ot_study
        optuna: Any = optuna_search.ot  # type: ignore[attr-defined]  # Ray imports it so
        study.add_trial(
            optuna.trial.create_trial(
                value=value,
                params=parameters,
                distributions=self.convert_search_space(domains(active(self._tree, parameters))),
            )
        )


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
