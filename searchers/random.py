"""Random search: points drawn from the space, each run to its end.

This is the baseline for the others. Every trial is independent of the others.
"""

from __future__ import annotations

from functools import partial

from govray.tune.dry_run import random_points as preview
from govray.tune.recipe import METRIC, Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """Deal ``max_trials`` random points, ``concurrent`` at once."""
    from ray.tune import TuneConfig

    from govray.tune.point_searcher import Points
    from govray.tune.points import draw

    search = file.search
    points = Points(partial(draw, search.space, search.seed), search.max_trials, concurrent)
    return Recipe({}, TuneConfig(metric=METRIC, mode="min", search_alg=points, num_samples=-1))
