"""Asynchronous successive halving (ASHA) over random points, with adaptive brackets.

Trials that are not among the best of a rung pause there, and some are promoted once more trials
have reached it. A pause costs a restart. ``form: stopping`` stops them at once instead.
``mode``, ``max_rungs`` and ``divisor`` shape the brackets: see `govray tune --dry-run`.

Without a limit of memorization that form is Ray's own `AsyncHyperBandScheduler`.
"""

from __future__ import annotations

import math

from govray.tune.dry_run import halving as preview
from govray.tune.recipe import TIME, Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """Deal ``max_trials`` random points, ``concurrent`` at once, and halve them at each rung."""
    from ray.tune.schedulers import AsyncHyperBandScheduler

    from govray.tune.point_searcher import dealt, drawn_points
    from govray.tune.schedulers import halving

    search, brackets = file.search, preview(file).brackets
    stopping = search.form == "stopping"
    if not stopping or math.isfinite(search.tau):
        return halving(file, concurrent, brackets, stopping=stopping)
    rays = AsyncHyperBandScheduler(
        time_attr=TIME,
        max_t=file.max_time,
        grace_period=brackets[0].rungs[0],
        reduction_factor=search.divisor,
        brackets=len(brackets),
    )
    return dealt(drawn_points(file, concurrent), rays)
