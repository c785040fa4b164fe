"""Hyperband over random points: all brackets, and trials wait for one another at each rung.

Li et al., "Hyperband" (2018), with the brackets of `searchers/asha.py` in its conservative mode.
Every decision compares all trials of a rung. That takes pauses, and each costs a restart.
"""

from __future__ import annotations

from govray.tune import dry_run
from govray.tune.recipe import Recipe
from govray.tune.search_config import SearchFile

__all__ = ["preview", "recipe"]


def preview(file: SearchFile) -> dry_run.Preview:
    """What runs, exactly: no trial goes on before its rung is complete."""
    return dry_run.halving(file, "conservative", synchronous=True)


def recipe(file: SearchFile, concurrent: int) -> Recipe:
    """Deal ``max_trials`` random points, ``concurrent`` at once, and halve them rung by rung."""
    from govray.tune.schedulers import halving

    return halving(file, concurrent, preview(file).brackets, synchronous=True)
