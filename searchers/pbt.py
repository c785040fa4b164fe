"""Population-based training: weak trials take over a better one's state and vary it.

Jaderberg et al., "Population based training of neural networks" (2017), by Ray's scheduler. Only
``optimizer.*`` may vary: a trial takes over another's weights, so their shapes must agree. All
trials run at once, and are compared ``max_rungs`` times. The search's seed does not reach the
generator from which Ray draws mutations.
"""

from __future__ import annotations

from functools import partial

from govray.errors import UsageError
from govray.tune.dry_run import Preview, random_points
from govray.tune.recipe import METRIC, Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def preview(file: SearchFile) -> Preview:
    """All trials run to the end."""
    if file.experiment.checkpoint.storage:
        what = "a trial takes over commits in the search's folder, not on an object store"
        raise UsageError(what, where="checkpoint.storage", do="Leave it out")
    for name in file.search.space:
        if not name.startswith("optimizer."):
            what = f"{name} can't change while a trial runs"
            raise UsageError(what, where="searchers/pbt.py", do="Vary optimizer.* alone")
    return random_points(file)


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """A population of ``max_trials``, which needs room for as many at once."""
    from ray.tune import TuneConfig

    from govray.tune.pbt_scheduler import Population
    from govray.tune.point_searcher import Points
    from govray.tune.points import draw

    search, size = file.search, preview(file).trials
    if concurrent < size:
        what = f"a population of {size} needs room for {size} trials, and has {concurrent}"
        raise UsageError(what, where="searchers/pbt.py", do="Lower max_trials, or add nodes")
    interval = max(file.max_time // search.max_rungs, 1)
    scheduler = Population(search.space, interval)
    points = Points(partial(draw, search.space, search.seed), size, concurrent)
    config = TuneConfig(
        metric=METRIC, mode="min", search_alg=points, scheduler=scheduler, num_samples=-1
    )
    compared = tuple(range(interval, file.max_time, interval))
    return Recipe({}, config, commit_at=compared, repeats=False)
