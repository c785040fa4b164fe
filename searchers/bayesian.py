"""Bayesian search: Optuna's tree-structured Parzen estimator, each trial run to its end.

It learns from the metric, with the limit of memorization as a constraint: points within it rank
before all others. So it avoids regions that memorize. It needs ``pip install optuna``.
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

    from govray.tune.limited_search import LimitedSearch

    try:
        algorithm = LimitedSearch(file.search)
    except (AssertionError, ImportError) as error:
        raise UsageError(
            "Optuna is not installed", where="search.searcher", do="pip install '.[search]'"
        ) from error
    config = TuneConfig(
        metric=METRIC,
        mode="min",
        search_alg=algorithm,
        num_samples=file.search.max_trials,
        max_concurrent_trials=concurrent,
    )
    return Recipe({}, config)
