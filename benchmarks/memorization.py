"""``python -m benchmarks.memorization``: does the monitor see what a model has memorized?

A character model of half a million parameters trains on this Python's standard library, once for
each seed. Canaries of eight digits are planted 1 to 256 times. It prints

* AUROC of the scores against *exposure* of at least 10 bits, over canaries that were planted and
  that were not. Exposure derives from the loss, as the scores do. So there is also the composite's
  AUROC against the number of plantings;
* AUROC of means of sixteen docstrings, repeated ones against reserve;
* the share of clean corpora, read once at most, that are flagged (false flags);
* what the monitor costs: seconds of a profile of one corpus, divided by those of the steps between
  two profiles.

Representation entropy is shown for comparison: it does not rank what was memorized. Every AUROC is
the mean over seeds. The last line is one JSON object.

The composite's weights are fixed in the product, so nothing is fitted here. The recipe and these
weights were found on other seeds than those reported.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

import torch

from benchmarks.command import positive, run
from benchmarks.memorization_data import Recipe, build, library
from benchmarks.memorization_run import GROUP, MEMORIZED, Outcome, run_seed
from govray.errors import CouldNotCheck

SEEDS = (17, 18, 19)
QUICK = Recipe(
    steps=40,
    rows=16,
    docstring_rows=6,
    docstrings=40,
    clean=3,
    repeats=(1, 32),
    canaries=2,
    once=20,
    candidates=200,
    blocks=2,
    width=32,
    context=64,
    learning_rate=1e-2,
    every=10,
    probe_rows=8,
)
TARGETS: Mapping[str, tuple[str, float]] = {
    "auroc_composite": ("at least", 0.95),
    "auroc_predictive_entropy": ("at least", 0.80),
    "auroc_natural_16": ("at least", 0.98),
    "false_flag_rate": ("at most", 0.05),
    "cost": ("at most", 0.01),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memorization", description=__doc__)
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and 40 steps: nothing is memorized"
    )
    options = parser.parse_args(argv)
    recipe = QUICK if options.quick else Recipe()
    torch.set_num_threads(
        1
    )  # a model this small gains little from more, and bits depend on the number
    print(
        f"torch {torch.__version__}, one thread; {recipe.steps} steps of "
        f"{recipe.rows} rows of {recipe.context} characters; seeds {options.seeds}",
        flush=True,
    )
    docstrings, sources = library()
    outcomes = []
    for seed in options.seeds:
        began = time.perf_counter()
        outcomes.append(run_seed(recipe, build(recipe, seed, docstrings, sources), seed))
        print(f"seed {seed}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    report = summary(outcomes, recipe)
    print(_table(report, outcomes))
    print(json.dumps(report))


def summary(outcomes: Sequence[Outcome], recipe: Recipe) -> dict[str, Any]:
    """The figures over all seeds. An AUROC is None if a seed has no positive or no negative."""

    def canaries(signal: str) -> float | None:
        return _mean([each.canaries[signal] for each in outcomes])

    def natural(signal: str) -> float | None:
        return _mean([each.natural[signal] for each in outcomes])

    profiles = [seconds for each in outcomes for seconds in each.profile_seconds]
    steps = [seconds for each in outcomes for seconds in each.step_seconds]
    if not profiles:
        raise CouldNotCheck("no corpus had enough rows to be measured", do="Train for more steps")
    report: dict[str, Any] = {
        "auroc_composite": canaries("composite"),
        "auroc_predictive_entropy": canaries("entropy"),
        "auroc_natural_16": natural("composite"),
        "auroc_representation_entropy": canaries("representation_entropy"),
        "false_flag_rate": sum(len(each.false_flags) for each in outcomes)
        / sum(each.clean for each in outcomes),
        "cost": median(profiles) / (recipe.every * median(steps)),
        "auroc_min_k": canaries("min_k"),
        "auroc_surprise": canaries("surprise"),
        "auroc_natural_16_predictive_entropy": natural("entropy"),
        "auroc_natural_16_representation_entropy": natural("representation_entropy"),
        "auroc_predictive_entropy_by_seed": [each.canaries["entropy"] for each in outcomes],
        "auroc_by_repeats": {
            str(repeats): _mean([each.by_repeats[repeats] for each in outcomes])
            for repeats in recipe.repeats
        },
        "exposure_by_repeats": {
            str(repeats): median([bits for each in outcomes for bits in each.exposures[repeats]])
            for repeats in (*recipe.repeats, 0)
        },
        "entropy_by_repeats": {
            str(repeats): median([nats for each in outcomes for nats in each.entropies[repeats]])
            for repeats in (*recipe.repeats, 0)
        },
        "memorized": sum(
            bits >= MEMORIZED
            for each in outcomes
            for own in each.exposures.values()
            for bits in own
        ),
        "caught": sum(each.caught for each in outcomes) / len(outcomes),
        "clean_corpora": sum(each.clean for each in outcomes),
        "every": recipe.every,
        "probe_rows": recipe.probe_rows,
        "seeds": len(outcomes),
    }
    report["met"] = {name: _met(report[name], *target) for name, target in TARGETS.items()}
    return report


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return mean(found) if len(found) == len(values) else None


def _met(value: float | None, direction: str, limit: float) -> bool:
    if value is None or math.isnan(value):
        return False
    return value >= limit if direction == "at least" else value <= limit


def _table(report: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    lines = [f"{'':<42}{'measured':>10}   target"]
    for name, (direction, limit) in TARGETS.items():
        said = "met" if report["met"][name] else "MISSED"
        lines.append(f"{name:<42}{_shown(report[name]):>10}   {direction} {limit}: {said}")
    others = [
        "auroc_representation_entropy",
        "auroc_min_k",
        "auroc_surprise",
        "auroc_natural_16_predictive_entropy",
        "auroc_natural_16_representation_entropy",
        "caught",
    ]
    lines += [f"{name:<42}{_shown(report[name]):>10}" for name in others]
    by_seed = map(_shown, report["auroc_predictive_entropy_by_seed"])
    lines.append(f"auroc_predictive_entropy of each seed: {', '.join(by_seed)}")
    lines.append(
        f"{report['memorized']} canaries of at least {MEMORIZED:g} bits; means of {GROUP} "
        f"docstrings; {report['clean_corpora']} clean corpora; a profile every "
        f"{report['every']} steps, {report['probe_rows']} rows a side"
    )
    lines.append(
        "plantings   median exposure, bits   median entropy, nats   AUROC against never planted"
    )
    for repeats, bits in report["exposure_by_repeats"].items():
        nats = report["entropy_by_repeats"][repeats]
        auroc = _shown(report["auroc_by_repeats"].get(repeats))
        lines.append(f"{repeats:>9}   {bits:>21.1f}   {nats:>20.2f}   {auroc:>27}")
    lines.append(f"ten equally likely digits have an entropy of {math.log(10):.2f} nats")
    flagged = sorted({name for each in outcomes for name in each.false_flags})
    if flagged:
        lines.append(f"flagged, but clean: {', '.join(flagged)}")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    sys.exit(run(main))
