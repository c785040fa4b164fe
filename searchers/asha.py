"""Asynchronous successive halving (ASHA) over random points, with adaptive brackets.

Trials that are not among the best of a rung pause there, and some are promoted once more trials
have reached it. A pause costs a restart. ``form: stopping`` stops them at once instead.
``mode``, ``max_rungs`` and ``divisor`` shape the brackets: see `govray tune --dry-run`.

Without a limit of memorization that form is Ray's own `AsyncHyperBandScheduler`.
"""

from __future__ import annotations

import math
from functools import partial

from govray.tune.dry_run import halving as preview
from govray.tune.recipe import METRIC, TIME, Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """Deal ``max_trials`` random points, ``concurrent`` at once, and halve them at each rung."""
    from ray.tune import TuneConfig
    from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

    from govray.tune.point_searcher import Points
    from govray.tune.points import draw
    from govray.tune.schedulers import HalvingScheduler
    from govray.tune.successive_halving import AsynchronousHalving

    search, brackets = file.search, preview(file).brackets
    points = Points(partial(draw, search.space, search.seed), search.max_trials, concurrent)
    stopping = search.form == "stopping"
    scheduler: TrialScheduler
    if not stopping or math.isfinite(search.tau):
        machine = AsynchronousHalving(brackets, search.divisor, stopping=stopping)
        scheduler = HalvingScheduler(machine, points)
    else:
        scheduler = AsyncHyperBandScheduler(
            time_attr=TIME,
            max_t=file.max_time,
            grace_period=brackets[0].rungs[0],
            reduction_factor=search.divisor,
            brackets=len(brackets),
        )
    config = TuneConfig(
        metric=METRIC, mode="min", search_alg=points, scheduler=scheduler, num_samples=-1
    )
    return Recipe({}, config)
