"""Bayesian search: Optuna's tree-structured Parzen estimator, each trial run to its end.

It learns from the governed objective: points within the limit of memorization rank before all
others. So it avoids regions that memorize. It needs ``pip install optuna``.
"""

from __future__ import annotations

from govray.errors import UsageError
from govray.tune.dry_run import learned_points as preview
from govray.tune.recipe import METRIC, Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """Let Optuna draw ``max_trials`` points, ``concurrent`` at once."""
    from ray.tune import TuneConfig
    from ray.tune.search.optuna import OptunaSearch

    from govray.tune.ray_space import domains
    from govray.tune.space import OneOf

    search = file.search
    tree = any(isinstance(each, OneOf) for each in search.space.values())
    try:
        if tree:
            from govray.tune.tree_search import TreeSearch

        algorithm = (
            TreeSearch(search.space, search.seed) if tree else OptunaSearch(seed=search.seed)
        )
    except (AssertionError, ImportError) as error:
        raise UsageError(
            "Optuna is not installed", where="search.searcher", do="pip install '.[search]'"
        ) from error
    config = TuneConfig(
        metric=METRIC,
        mode="min",
        search_alg=algorithm,
        num_samples=search.max_trials,
        max_concurrent_trials=concurrent,
    )
    return Recipe({} if tree else domains(search.space), config)
