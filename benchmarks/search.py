"""``python -m benchmarks.search``: governed ASHA against random and grid search, equal budget.

Each method has the same number of steps, on the same space, data and workers. A search's governed
loss at some time is its result if it ended then. That is the lowest loss of the trials whose last
report is within the limit of memorization. ASHA is compared with each other method, seed by seed.
The target is the loss that both reach: the worse of the two final losses. The benchmark prints how
many epochs over all trials, and how much time, each needed until it stayed at the target. Time is
computed from the measured seconds of a step, without the start of a trial.

Every trial trains a small model in this process (`benchmarks.search_trials`). It memorizes a
restricted corpus if its point reads that often. The decisions are those of `govray tune`.

All but the grid try the same points in the same order, so a method gains only by leaving points
early. Trials that will memorize have the lowest losses at the early rungs, where their memorization
does not show yet. They take places from those that will not; the figures include that cost. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.command import positive, run
from benchmarks.intervals import paired_ratio
from benchmarks.memorization_data import library
from benchmarks.search_curves import Curves
from benchmarks.search_race import (
    Method,
    Promoting,
    Reached,
    Stopping,
    ToTheEnd,
    ladders,
    race,
    since,
)
from benchmarks.search_trials import RATE, RESTRICTED, WIDTH, Recipe, build, curve
from govray.errors import CouldNotCheck
from govray.tune.brackets import Bracket
from govray.tune.points import Point, draw, grid
from govray.tune.search_config import Search
from govray.tune.space import Choice, Dimension, Integer, Log

SEEDS = (17, 18, 19, 20, 21)
WORKERS = 4
DIVISOR = 3
RUNGS = 4
FULL_TRIALS = 12
"""Number of complete trials that the budget allows."""
QUICK = Recipe(
    steps=27, every=3, public=64, restricted=8, validation=8, blocks=1, widths=(4, 8), context=32
)
BASELINES = ("random", "grid")
METHODS = (*BASELINES, "asha", "asha_promotion")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument("--workers", type=positive, default=WORKERS, help="trials at once")
    parser.add_argument("--quick", action="store_true", help="tiny models: the figures mean little")
    options = parser.parse_args(argv)
    recipe = QUICK if options.quick else Recipe()
    budget = FULL_TRIALS * recipe.steps
    torch.set_num_threads(1)  # models this small are slower on two
    brackets = ladders(recipe.steps, full_trials=FULL_TRIALS, divisor=DIVISOR, rungs=RUNGS)
    print(
        f"torch {torch.__version__}; a budget of {budget} steps "
        f"in trials of at most {recipe.steps}, {options.workers} at once; M within {recipe.tau}; "
        f"seeds {options.seeds}",
        flush=True,
    )
    docstrings, _ = library()
    races, seconds = [], []
    for seed in options.seeds:
        began = time.perf_counter()
        data = build(recipe, seed, docstrings)
        curves = Curves(partial(curve, recipe, data, seed=seed))
        races.append(
            {
                name: race(
                    method,
                    points,
                    partial(curves.report, tau=recipe.tau),
                    workers=options.workers,
                    every=recipe.every,
                    budget=budget,
                )
                for name, (method, points) in contestants(recipe, brackets, seed).items()
            }
        )
        seconds.append(curves.seconds_per_step)
        print(f"seed {seed}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    report = summary(races, recipe, median(seconds))
    report |= {"budget_steps": budget, "workers": options.workers, "seeds": options.seeds}
    print(_table(report))
    print(json.dumps(report))


def contestants(
    recipe: Recipe, brackets: Sequence[Bracket], seed: int
) -> dict[str, tuple[Method, Callable[[int], Point]]]:
    """Each method, new, and its points; all but the grid have the same ones."""
    search = space(recipe)

    def drawn(number: int) -> Point:
        return draw(search.space, seed, number)

    points = crossings(recipe)
    random.Random(seed).shuffle(points)  # noqa: S311 — its order is the grid's only chance
    return {
        "random": (ToTheEnd(FULL_TRIALS, recipe.steps), drawn),
        "grid": (ToTheEnd(len(points), recipe.steps), points.__getitem__),
        "asha": (Stopping(brackets, DIVISOR), drawn),
        "asha_promotion": (Promoting(brackets, DIVISOR), drawn),
    }


def space(recipe: Recipe) -> Search:
    """What varies: the learning rate, the model's width, and rows of the restricted corpus."""
    return Search(
        space=_dimensions(recipe.rows, recipe.widths),
        max_trials=FULL_TRIALS,
    )


def crossings(recipe: Recipe) -> list[Point]:
    """The grid: three rates, two widths, two counts of rows."""
    few = _dimensions(recipe.rows, (recipe.widths[len(recipe.widths) // 2], recipe.widths[-1]))
    return list(grid(Search(space=few, max_trials=FULL_TRIALS)))


def _dimensions(rows: int, widths: Sequence[int]) -> dict[str, Dimension]:
    return {
        RATE: Log(log=(1e-6, 1.0), count=3),
        WIDTH: Choice(choice=tuple(widths)),
        RESTRICTED: Integer(int=(0, rows // 2), count=2),
    }


def summary(
    races: Sequence[Mapping[str, Sequence[Reached]]], recipe: Recipe, seconds_per_step: float
) -> dict[str, Any]:
    """The figures over all seeds: medians, and medians of ratios paired by seed.

    Raises:
        CouldNotCheck: In some seed a method found no governed trial at all.
    """
    if not all(math.isfinite(found[-1].loss) for each in races for found in each.values()):
        raise CouldNotCheck("a method found no trial within the limit", do="Take other seeds")
    methods: dict[str, Any] = {
        name: {
            "final_loss": median(each[name][-1].loss for each in races),
            "starts": median(each[name][-1].starts for each in races),
        }
        for name in METHODS
    }
    for name in METHODS:
        if name in BASELINES:
            continue
        for other in BASELINES:
            methods[name][f"vs_{other}"] = _against(
                [(each[name], each[other]) for each in races], recipe, seconds_per_step
            )
    return {"methods": methods, "seconds_per_step": seconds_per_step, "tau": recipe.tau}


def _against(
    pairs: Sequence[tuple[Sequence[Reached], Sequence[Reached]]],
    recipe: Recipe,
    seconds_per_step: float,
) -> dict[str, Any]:
    """One method against another, by seed: what each needs to reach the common loss."""
    reached = []
    for ours, theirs in pairs:
        target = max(ours[-1].loss, theirs[-1].loss)
        reached.append((since(ours, target), since(theirs, target)))
    found: dict[str, Any] = {
        "ends_lower": sum(ours[-1].loss < theirs[-1].loss for ours, theirs in pairs)
    }
    for key, unit, scale in (
        ("epochs", "steps", 1 / recipe.steps_per_epoch),
        ("seconds", "ticks", seconds_per_step),
    ):
        ours, theirs = ([getattr(pair[side], unit) for pair in reached] for side in (0, 1))
        ratio = paired_ratio(ours, theirs)
        found[key] = median(ours) * scale
        found[f"{key}_of_other"] = median(theirs) * scale
        found[f"{key}_ratio"] = ratio.median
        found[f"{key}_ratio_interval"] = list(ratio.interval)
        found[f"{key}_ratio_by_seed"] = [a / b for a, b in zip(ours, theirs, strict=True)]
    return found


def _table(report: Mapping[str, Any]) -> str:
    lines = [f"{'':<16}{'final loss':>12}{'starts':>8}"]
    for name, found in report["methods"].items():
        lines.append(f"{name:<16}{found['final_loss']:>12.4f}{found['starts']:>8.0f}")
    lines.append("")
    for name in METHODS:
        if name in BASELINES:
            continue
        for other in BASELINES:
            found = report["methods"][name][f"vs_{other}"]
            shown = [
                f"{found[f'{key}_ratio']:.2f} of its {key} "
                f"[{found[f'{key}_ratio_interval'][0]:.2f}, "
                f"{found[f'{key}_ratio_interval'][1]:.2f}]"
                for key in ("epochs", "seconds")
            ]
            lines.append(
                f"{name} against {other}: {', '.join(shown)}; "
                f"ends lower in {found['ends_lower']} of {len(report['seeds'])} seeds"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
