"""``python -m benchmarks.memorization``: does the monitor see what a model has memorized?

A character model of half a million parameters trains on this Python's standard library, once for
each seed. Canaries of eight digits are planted 1 to 256 times. It prints

* AUROC of the scores against *exposure* of at least 10 bits, over canaries that were planted and
  that were not. Exposure derives from the loss, as the scores do. So there is also the composite's
  AUROC against the number of plantings;
* AUROC of means of sixteen docstrings, repeated ones against reserve;
* what the product decides at the shipped operating point. In which share of runs are the repeated
  docstrings flagged (caught), after how many profiles? Which clean corpora, read once at most, are
  flagged too (false flags)?
* baselines (`benchmarks.membership`) beside the composite, over the same rows: plain loss, loss by
  zlib, Min-K%, Min-K%++, LiRA, and a classifier that sees no model;
* the same rankings of two model families on two kinds of text (``FAMILIES``,
  ``memorization_kinds.py``), and of a pretrained model where one is installed
  (``memorization_pretrained.py``). ``auroc_other_family`` is the composite's, of the Llama: rows
  read 16 times or more against rows never read;
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch

from benchmarks import memorization_pretrained as pretrained
from benchmarks.command import positive, run
from benchmarks.memorization_data import Recipe, build, library
from benchmarks.memorization_decision import shipped
from benchmarks.memorization_decision import summary as decision_summary
from benchmarks.memorization_families import FAMILIES
from benchmarks.memorization_kinds import Kind, code, prose
from benchmarks.memorization_ranking import METHODS, Ranking, averaged, mean_of
from benchmarks.memorization_run import MEMORIZED, Outcome, rank_seed, run_seed
from benchmarks.memorization_tables import families_table, monitor_table, pretrained_table
from govray.errors import CouldNotCheck
from govray.governance.policy.memorization_section import Monitoring

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
    others=64,
    references=1,
    reference_steps=5,
)
OTHERS = Recipe(
    steps=1550,
    docstrings=250,
    rows_each=1,
    reads=(2, 4, 8, 16, 32),
    clean=8,
    repeats=(),
    canaries=0,
    once=0,
    references=1,
    reference_steps=600,
)
"""Of the runs of both families and kinds: 250 rows, fifty for each number of reads."""

PARTS = ("monitor", "families", "pretrained")

OTHER_FAMILY = "llama"

QUICK_OTHERS = replace(
    QUICK, docstrings=20, rows_each=1, reads=(2, 16), repeats=(), canaries=0, once=0
)
TARGETS: Mapping[str, tuple[str, float]] = {
    "auroc_composite": ("at least", 0.95),
    "auroc_predictive_entropy": ("at least", 0.80),
    "auroc_natural_16": ("at least", 0.98),
    "false_flag_rate": ("at most", 0.05),
    "cost": ("at most", 0.01),
}


@dataclass(frozen=True)
class Cell:
    """The runs of one model family on one kind of text, a run for each seed."""

    family: str
    kind: str
    rankings: Sequence[Mapping[str, Ranking]]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memorization", description=__doc__)
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and 40 steps: nothing is memorized"
    )
    parser.add_argument(
        "--parts",
        choices=PARTS,
        nargs="+",
        default=list(PARTS),
        help="what to run; without it, all",
    )
    options = parser.parse_args(argv)
    recipe, others = (QUICK, QUICK_OTHERS) if options.quick else (Recipe(), OTHERS)
    section = shipped()
    if options.quick:
        section = section.model_copy(update={"every": QUICK.every, "probe_rows": QUICK.probe_rows})
    torch.set_num_threads(
        1
    )  # a model this small gains little from more, and bits depend on the number
    print(f"torch {torch.__version__}, one thread; seeds {options.seeds}", flush=True)
    docstrings, sources = library()
    report: dict[str, Any] = {}
    if "monitor" in options.parts:
        outcomes = []
        for seed in options.seeds:
            with _timed(f"monitor, seed {seed}"):
                data = build(recipe, seed, docstrings, sources)
                outcomes.append(run_seed(recipe, data, seed, section))
        report |= summary(outcomes, recipe, section)
        print(monitor_table(report, outcomes, TARGETS))
    if {"families", "pretrained"} & set(options.parts):
        texts = prose(others.clean)
    if "families" in options.parts:
        kinds = {"code": code(sources, others.clean), "prose": texts}
        cells = [
            Cell(family, name, [_rank(others, seed, family, name, kind) for seed in options.seeds])
            for family in FAMILIES
            for name, kind in kinds.items()
        ]
        report |= families(cells)
        print(families_table(report, texts.licences))
    if "pretrained" in options.parts:
        report["pretrained"] = _pretrained(texts.pool, options.seeds, options.quick)
        print(pretrained_table(report["pretrained"]))
    print(json.dumps(report))


def _rank(recipe: Recipe, seed: int, family: str, name: str, kind: Kind) -> dict[str, Ranking]:
    with _timed(f"{family}, {name}, seed {seed}"):
        data = build(recipe, seed, kind.pool, kind.packages)
        return rank_seed(recipe, data, seed, FAMILIES[family])


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


def _pretrained(pool: Sequence[str], seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    if lacks := pretrained.missing():
        return {"missing": lacks}
    recipe = pretrained.Continued()
    if quick:
        recipe = replace(recipe, reads=(1, 16), each=1, others=16, units=8, blocks=1)
    with _timed("pretrained"):
        found = pretrained.continued(recipe, pool, seeds)
    return {"package": pretrained.PACKAGE, "baselines": _rankings(found)}


def families(cells: Sequence[Cell]) -> dict[str, Any]:
    """The figures of both families and kinds."""
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        found.setdefault(cell.family, {})[cell.kind] = _rankings(cell.rankings)
    other = [methods["composite"]["auroc"] for methods in found[OTHER_FAMILY].values()]
    return {"auroc_other_family": mean_of(other), "families": found}


def _rankings(found: Sequence[Mapping[str, Ranking]]) -> dict[str, dict[str, Any]]:
    return {name: asdict(averaged([each[name] for each in found])) for name in METHODS}


def summary(outcomes: Sequence[Outcome], recipe: Recipe, section: Monitoring) -> dict[str, Any]:
    """The figures over all seeds. An AUROC is None if a seed has no positive or no negative."""

    def canaries(signal: str) -> float | None:
        return mean_of([each.canaries[signal] for each in outcomes])

    def natural(signal: str) -> float | None:
        return mean_of([each.natural[signal] for each in outcomes])

    profiles = [seconds for each in outcomes for seconds in each.profile_seconds]
    steps = [seconds for each in outcomes for seconds in each.step_seconds]
    if not profiles:
        raise CouldNotCheck("no corpus had enough rows to be measured", do="Train for more steps")
    decided = decision_summary([each.decided for each in outcomes], section)
    report: dict[str, Any] = {
        "auroc_composite": canaries("composite"),
        "auroc_predictive_entropy": canaries("entropy"),
        "auroc_natural_16": natural("composite"),
        "auroc_representation_entropy": canaries("representation_entropy"),
        "false_flag_rate": sum(len(each.decided.false_flags) for each in outcomes)
        / sum(each.clean for each in outcomes),
        "cost": median(profiles) / (recipe.every * median(steps)),
        "auroc_min_k": canaries("min_k"),
        "auroc_surprise": canaries("surprise"),
        "auroc_natural_16_predictive_entropy": natural("entropy"),
        "auroc_natural_16_representation_entropy": natural("representation_entropy"),
        "auroc_predictive_entropy_by_seed": [each.canaries["entropy"] for each in outcomes],
        "auroc_by_repeats": {
            str(repeats): mean_of([each.by_repeats[repeats] for each in outcomes])
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
        "caught": decided["caught"],
        "decision": decided,
        "baselines": _rankings([each.rankings for each in outcomes]),
        "clean_corpora": sum(each.clean for each in outcomes),
        "every": recipe.every,
        "probe_rows": recipe.probe_rows,
        "seeds": len(outcomes),
    }
    report["met"] = {name: _met(report[name], *target) for name, target in TARGETS.items()}
    return report


def _met(value: float | None, direction: str, limit: float) -> bool:
    if value is None or math.isnan(value):
        return False
    return value >= limit if direction == "at least" else value <= limit


if __name__ == "__main__":
    sys.exit(run(main))
