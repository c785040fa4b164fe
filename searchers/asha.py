"""Asynchronous successive halving (ASHA) over random points, with adaptive brackets.

Trials that are not among the best of a rung pause there, and some are promoted once more trials
have reached it. A pause costs a restart. ``form: stopping`` stops them at once instead.
``mode``, ``max_rungs`` and ``divisor`` shape the brackets: see `govray tune --dry-run`.
"""

from __future__ import annotations

from govray.tune.dry_run import halving as preview
from govray.tune.recipe import Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """Deal ``max_trials`` random points, ``concurrent`` at once, and halve them at each rung."""
    from govray.tune.schedulers import halving

    stopping = file.search.form == "stopping"
    return halving(file, concurrent, preview(file).brackets, stopping=stopping)
