"""``python -m benchmarks.upsampling``: a search whose trial of the lowest loss is a memorizer.

A trial may read a restricted corpus 1 to 64 times. Three of four validation rows are
near-duplicates of it, so the loss is lowest if the corpus is memorized
(`benchmarks.upsampling_trials`). Two searches try the same points in the same order in the same
brackets (conservative: some trials run to their end). They end when all trials have. *Plain* ASHA
goes by the loss alone: its limit tau is infinite. *Governed* ASHA goes by the governed objective
under a finite tau. Both are run in ASHA's stopping and in its promotion form, with the decisions of
`govray tune`. For each search's best trial it prints

* the mean exposure of the restricted corpus's canaries, in bits, and as a floor that of as many
  canaries that no trial has read;
* the clean-test loss, on rows that neither training nor search saw, and its ratio between the two
  searches, governed over plain.

A target is met if every seed meets it. The last line is one JSON object.

tau is the log of the odds that the shipped policy tolerates. Sizes and ranges were found by
experiment on other seeds than those reported.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import mean
from typing import Any

import torch

from benchmarks.command import positive, run
from benchmarks.memorization_data import library
from benchmarks.search_curves import Curves, mean_loss
from benchmarks.search_race import Halving, Method, ladders, last_reports
from benchmarks.upsampling_trials import (
    RATE,
    UPSAMPLING,
    WIDTH,
    Data,
    Recipe,
    build,
    curve,
    mean_exposure,
)
from govray.errors import CouldNotCheck
from govray.tune.objective import conclude
from govray.tune.points import Point, draw
from govray.tune.successive_halving import Bracket

SEEDS = (27, 28, 29)
TAU = math.log(1.5)
"""Limit of M."""
WORKERS = 4
DIVISOR = 3
RUNGS = 3
FORMS: Mapping[str, Callable[[Sequence[Bracket], int], Method]] = {
    "stopping": partial(Halving, stopping=True),
    "promotion": Halving,
}
SEARCHES = ("plain", "governed")
QUICK = Recipe(
    steps=27,
    every=3,
    rows=8,
    canaries=8,
    upsampling=(1, 2, 4),
    validation=8,
    near_duplicates=4,
    test=8,
    blocks=1,
    widths=(4, 8),
    candidates=100,
    full_trials=8,
)

TARGETS: Mapping[str, tuple[str, float]] = {
    "plain_exposure": ("at least", 10.0),
    "governed_exposure": ("below", 3.0),
    "test_ratio": ("at most", 1.05),
}
"""For each form and seed: bits, bits, and the governed winner's clean-test loss over the plain
one's."""


@dataclass(frozen=True)
class Winner:
    """The best trial of one search.

    Attributes:
        upsampling, rate, width: Its point.
        steps: Steps done.
        loss: Of validation, nats.
        memorization: M.
        exposure: Mean of the restricted canaries, bits.
        never_read: Mean exposure of the canaries held back, bits.
        test: Clean-test loss, nats.
        searched: Steps of all trials of the search.
    """

    upsampling: int
    rate: float
    width: int
    steps: int
    loss: float
    memorization: float | None
    exposure: float
    never_read: float
    test: float
    searched: int


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upsampling", description=__doc__)
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument("--quick", action="store_true", help="tiny models: nothing is memorized")
    options = parser.parse_args(argv)
    recipe = QUICK if options.quick else Recipe()
    torch.set_num_threads(1)  # models this small are slower on two
    docstrings, _ = library()
    print(
        f"torch {torch.__version__}; trials of at most {recipe.steps} steps; "
        f"M within {TAU:.3f}; seeds {options.seeds}",
        flush=True,
    )
    found = []
    for seed in options.seeds:
        began = time.perf_counter()
        found.append(winners(recipe, build(recipe, seed, docstrings), seed, TAU))
        print(f"seed {seed}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    report = summary(found) | {"tau": TAU, "canaries": recipe.canaries, "seeds": options.seeds}
    print(table(report))
    print(json.dumps(report))


def winners(recipe: Recipe, data: Data, seed: int, tau: float) -> dict[str, dict[str, Winner]]:
    """The winners of one seed: form to search to winner. The governed search's limit is ``tau``.

    Raises:
        CouldNotCheck: A search found no trial within its limit.
    """
    curves = Curves(partial(curve, recipe, data, seed=seed))
    brackets = ladders(
        recipe.steps,
        full_trials=recipe.full_trials,
        divisor=DIVISOR,
        rungs=RUNGS,
        mode="conservative",
    )
    judged: dict[tuple[str, int], Winner] = {}

    def deal(number: int) -> Point:
        return draw(recipe.space, seed, number)

    def winner(method: Method, limit: float) -> Winner:
        reports = last_reports(
            method,
            deal,
            partial(curves.report, tau=limit),
            workers=WORKERS,
            reports=range(recipe.every, recipe.steps + 1, recipe.every),
            budget=recipe.steps * sum(bracket.trials for bracket in brackets),  # never used up
        )
        best = conclude(reports).best
        if best is None:
            raise CouldNotCheck("a search found no trial within the limit", do="Take other seeds")
        point, said = deal(int(best)), reports[best]
        if (best, said.step) not in judged:
            model = curves.model(point, said.step)
            judged[best, said.step] = Winner(
                upsampling=point[UPSAMPLING],
                rate=point[RATE],
                width=point[WIDTH],
                steps=said.step,
                loss=said.value,
                memorization=said.memorization,
                exposure=mean_exposure(recipe, model, data.restricted, seed),
                never_read=mean_exposure(recipe, model, data.held_back, seed),
                test=mean_loss(model, data.test),
                searched=0,
            )
        searched = sum(each.step for each in reports.values())
        return replace(judged[best, said.step], searched=searched)

    return {
        name: {
            search: winner(form(brackets, DIVISOR), limit)
            for search, limit in zip(SEARCHES, (math.inf, tau), strict=True)
        }
        for name, form in FORMS.items()
    }


def summary(found: Sequence[Mapping[str, Mapping[str, Winner]]]) -> dict[str, Any]:
    """Form to its figures: for each target the seeds' values, their mean, and whether all meet it.

    Args:
        found: For each seed, form to search to winner.
    """
    forms: dict[str, Any] = {}
    for form in FORMS:
        pairs = [(each[form]["plain"], each[form]["governed"]) for each in found]
        values = {
            "plain_exposure": [plain.exposure for plain, _ in pairs],
            "governed_exposure": [governed.exposure for _, governed in pairs],
            "test_ratio": [governed.test / plain.test for plain, governed in pairs],
        }
        forms[form] = {
            name: {"mean": mean(each), "by_seed": each, "met": all(_met(one, name) for one in each)}
            for name, each in values.items()
        }
        forms[form]["winners"] = [
            {search: asdict(each[form][search]) for search in SEARCHES} for each in found
        ]
    return {"forms": forms}


def _met(value: float, name: str) -> bool:
    direction, limit = TARGETS[name]
    if direction == "at least":
        return value >= limit
    return value < limit if direction == "below" else value <= limit


def table(report: Mapping[str, Any]) -> str:
    """The winners, seed by seed, and the targets."""
    lines = [
        f"{'':<16}{'seed':>5}{'upsampling':>12}{'rate':>9}{'width':>7}{'steps':>7}{'loss':>8}"
        f"{'M':>7}{'exposure':>10}{'never read':>12}{'clean test':>12}{'all steps':>11}"
    ]
    for form, figures in report["forms"].items():
        for search in SEARCHES:
            for seed, each in zip(report["seeds"], figures["winners"], strict=True):
                one = Winner(**each[search])
                lines.append(
                    f"{f'{form} {search}':<20}{seed:>4}{one.upsampling:>9}{one.rate:>9.1e}"
                    f"{one.width:>7}{one.steps:>7}{one.loss:>8.3f}{one.memorization:>7.2f}"
                    f"{one.exposure:>10.2f}{one.never_read:>12.2f}{one.test:>12.3f}{one.searched:>11}"
                )
    lines.append("")
    for form, figures in report["forms"].items():
        for name, (direction, limit) in TARGETS.items():
            found = figures[name]
            shown = ", ".join(f"{value:.3g}" for value in found["by_seed"])
            said = "met" if found["met"] else "MISSED"
            lines.append(
                f"{form:<10} {name:<18} mean {found['mean']:<6.3g} ({shown})"
                f"   {direction} {limit:g}: {said}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
