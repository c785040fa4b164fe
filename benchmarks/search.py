"""``python -m benchmarks.search``: governed ASHA against random and grid search, equal budget.

Each method has the same steps to spend, on the same space, data and workers. In every seed the
target is the governed loss that all methods reach: the worst of what each ends with. It prints, for
each method, when it got there: in epochs over all trials, and in time, computed from the measured
seconds of a step. Starting a trial is not in that time; how many were started is printed beside it.

Every trial is trained here, in this process, by small models that memorize a restricted corpus if
their point reads it often (`benchmarks.search_trials`); the decisions are those of `govray tune`.
A governed loss is that of a trial whose memorization is within the limit.

All but the grid deal the same points in the same order, so a method gains only by leaving points
early. Trials that will memorize have the lowest losses at the early rungs, where their memorization
does not show yet, and take places from those that will not; what that costs is in the figures.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.command import positive, run
from benchmarks.intervals import paired_ratio
from benchmarks.memorization_data import library
from benchmarks.search_race import Method, Promoting, Reached, Stopping, ToTheEnd, race
from benchmarks.search_trials import RATE, RESTRICTED, WIDTH, Curves, Recipe, build
from govray.errors import CouldNotCheck
from govray.tune.brackets import Bracket, adaptive
from govray.tune.config import Choice, Dimension, Integer, Log, Search
from govray.tune.points import Point, draw, grid
from govray.tune.simulate import trials_ending

SEEDS = (17, 18, 19, 20, 21)
WORKERS = 4
DIVISOR = 3
RUNGS = 4
FULL_TRIALS = 12
"""Trials that the budget pays to their end."""
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
    brackets = ladders(recipe)
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
        curves = Curves(recipe, build(recipe, seed, docstrings), seed)
        races.append(
            {
                name: race(
                    method,
                    points,
                    curves.report,
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


def ladders(recipe: Recipe) -> tuple[Bracket, ...]:
    """The brackets of the most trials that the budget pays as planned."""
    found: tuple[Bracket, ...] = ()
    for trials in range(1, FULL_TRIALS * DIVISOR**RUNGS):
        brackets = adaptive(
            max_trials=trials,
            max_time=recipe.steps,
            divisor=DIVISOR,
            max_rungs=RUNGS,
            mode="standard",
        )
        planned = sum(step * count for step, count in trials_ending(brackets, DIVISOR).items())
        if planned > FULL_TRIALS * recipe.steps:
            break
        found = brackets
    return found


def contestants(
    recipe: Recipe, brackets: Sequence[Bracket], seed: int
) -> dict[str, tuple[Method, Callable[[int], Point]]]:
    """Each method, new, and the points that it deals; all but the grid deal the same ones."""
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
    if not all(found for each in races for found in each.values()):
        raise CouldNotCheck("a method found no trial within the limit", do="Take other seeds")
    reached: dict[str, list[Reached]] = {name: [] for name in METHODS}
    for each in races:
        target = max(found[-1].loss for found in each.values())
        for name, found in each.items():
            reached[name].append(next(one for one in found if one.loss <= target))
    methods: dict[str, Any] = {}
    for name, found in reached.items():
        methods[name] = {
            "epochs_to_target": median(one.steps for one in found) / recipe.steps_per_epoch,
            "seconds_to_target": median(one.ticks for one in found) * seconds_per_step,
            "starts_to_target": median(one.starts for one in found),
            "final_loss": median(each[name][-1].loss for each in races),
        }
        if name in BASELINES:
            continue
        for other in BASELINES:
            for unit, key in (("steps", "epochs"), ("ticks", "seconds")):
                ratio = paired_ratio(
                    [getattr(one, unit) for one in found],
                    [getattr(one, unit) for one in reached[other]],
                )
                methods[name][f"{key}_vs_{other}"] = ratio.median
                methods[name][f"{key}_vs_{other}_interval"] = list(ratio.interval)
    return {"methods": methods, "seconds_per_step": seconds_per_step, "tau": recipe.tau}


def _table(report: Mapping[str, Any]) -> str:
    names = ("epochs_to_target", "seconds_to_target", "starts_to_target", "final_loss")
    lines = [f"{'':<16}" + "".join(f"{name.replace('_', ' '):>20}" for name in names)]
    for name, found in report["methods"].items():
        lines.append(f"{name:<16}" + "".join(f"{found[each]:>20.3g}" for each in names))
    lines.append("")
    for name in METHODS:
        if name in BASELINES:
            continue
        for other in BASELINES:
            found = report["methods"][name]
            shown = [
                f"{found[f'{key}_vs_{other}']:.2f} of its {key} "
                f"[{found[f'{key}_vs_{other}_interval'][0]:.2f}, "
                f"{found[f'{key}_vs_{other}_interval'][1]:.2f}]"
                for key in ("epochs", "seconds")
            ]
            lines.append(f"{name} against {other}: {', '.join(shown)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
