"""Population-based training: weak trials take over a better one's state and vary it.

Jaderberg et al., "Population based training of neural networks" (2017), by Ray's scheduler, seeded
by the search. What may vary is the list of `govray.tune.may_change`: a trial takes over another's
weights, so their shapes must agree. The steps are divided by ``max_rungs``, and trials are compared
between the parts. All wait for the last one, so each comparison costs a restart of each trial.
"""

from __future__ import annotations

from govray.errors import UsageError
from govray.tune.dry_run import Preview, population
from govray.tune.may_change import check_may_change
from govray.tune.recipe import Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def preview(file: SearchFile) -> Preview:
    """All trials run to the end, and are compared on the way."""
    if file.experiment.checkpoint.storage:
        what = "a trial takes over commits in the search's folder, not on an object store"
        raise UsageError(what, where="checkpoint.storage", do="Leave it out")
    check_may_change(file.search.space, file.experiment)
    return population(file)


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """A population of ``max_trials``, ``concurrent`` of them at once."""
    from govray.tune.pbt_scheduler import Population
    from govray.tune.point_searcher import dealt, drawn_points

    search, [bracket] = file.search, preview(file).brackets
    points = drawn_points(file, concurrent)
    scheduler = Population(search.space, bracket.rungs[0], seed=search.seed, points=points)
    return dealt(points, scheduler, commit_at=bracket.rungs[:-1], repeats=False)
