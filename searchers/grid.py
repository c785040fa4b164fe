"""Grid search: every combination of the values, each run to its end.

Use it for a few values. A range of numbers needs a ``count``.
"""

from __future__ import annotations

from govray.tune.dry_run import grid_points as preview
from govray.tune.recipe import Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """Try all points of the grid, ``concurrent`` at once."""
    from govray.tune.point_searcher import Points, dealt, from_sequence
    from govray.tune.points import grid

    points = list(grid(file.search))
    return dealt(Points(from_sequence(points), len(points), concurrent))
