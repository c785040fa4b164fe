"""Hyperband over random points: all brackets, and trials wait for one another at each rung.

Li et al., "Hyperband" (2018), with the brackets of `searchers/asha.py` in its conservative mode.
Every decision compares all trials of a rung. That takes pauses, and each costs a restart.
"""

from __future__ import annotations

from functools import partial

from govray.tune.dry_run import Preview, halving
from govray.tune.recipe import METRIC, Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def preview(file: SearchFile) -> Preview:
    """What runs, exactly: no trial goes on before its rung is complete."""
    return halving(file, "conservative", synchronous=True)


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """Deal ``max_trials`` random points, ``concurrent`` at once, and halve them rung by rung."""
    from ray.tune import TuneConfig

    from govray.tune.point_searcher import Points
    from govray.tune.points import draw
    from govray.tune.schedulers import HalvingScheduler
    from govray.tune.successive_halving import AsynchronousHalving

    search = file.search
    points = Points(partial(draw, search.space, search.seed), search.max_trials, concurrent)
    machine = AsynchronousHalving(preview(file).brackets, search.divisor, synchronous=True)
    scheduler = HalvingScheduler(machine, points)
    config = TuneConfig(
        metric=METRIC, mode="min", search_alg=points, scheduler=scheduler, num_samples=-1
    )
    return Recipe({}, config)
