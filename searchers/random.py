"""Random search: points drawn from the space, each run to its end.

This is the baseline for the others. Every trial is independent of the others.
"""

from __future__ import annotations

from govray.tune.dry_run import random_points as preview
from govray.tune.recipe import Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """Deal ``max_trials`` random points, ``concurrent`` at once."""
    from govray.tune.point_searcher import dealt, drawn_points

    return dealt(drawn_points(file, concurrent))
