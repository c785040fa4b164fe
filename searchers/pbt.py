"""Population-based training: weak trials take over a better one's state and vary it.

Jaderberg et al., "Population based training of neural networks" (2017), by Ray's scheduler, seeded
by the search. What may vary is the list of `govray.tune.may_change`: a trial takes over another's
weights, so their shapes must agree. Trials are compared ``max_rungs`` times. Where there is less
room than trials, they take turns from one comparison to the next, which costs restarts.
"""

from __future__ import annotations

from functools import partial

from govray.errors import UsageError
from govray.tune.dry_run import Preview, random_points
from govray.tune.may_change import check_may_change
from govray.tune.recipe import METRIC, Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def preview(file: SearchFile) -> Preview:
    """All trials run to the end."""
    if file.experiment.checkpoint.storage:
        what = "a trial takes over commits in the search's folder, not on an object store"
        raise UsageError(what, where="checkpoint.storage", do="Leave it out")
    check_may_change(file.search.space, file.experiment)
    return random_points(file)


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """A population of ``max_trials``, ``concurrent`` of them at once."""
    from ray.tune import TuneConfig

    from govray.tune.pbt_scheduler import Population
    from govray.tune.point_searcher import Points
    from govray.tune.points import draw

    search, size = file.search, preview(file).trials
    interval = max(file.max_time // search.max_rungs, 1)
    points = Points(partial(draw, search.space, search.seed), size, concurrent)
    scheduler = Population(search.space, interval, seed=search.seed, points=points)
    config = TuneConfig(
        metric=METRIC, mode="min", search_alg=points, scheduler=scheduler, num_samples=-1
    )
    compared = tuple(range(interval, file.max_time, interval))
    return Recipe({}, config, commit_at=compared, repeats=False)
