"""``python -m benchmarks.research.record_scores``: which score knows a record that was read best?

Small Llamas train on paragraphs of manual pages, of which records of four rows are read 2, 8 or 16
times. Every fifty steps all rows are scored at the model's own prediction. At the end, four scores
rank the records of each number of reads above held-back ones:

``row``     of one row, as it is
``change``  of that row, less what it was when the row had not been read yet
``sum``     of both
``rows-2``, ``rows-4``  the mean of so many rows of the record

A held-back record has no first reading. It gets that of a record that was read, by lot.

Prints a table of AUROC, and as its last line one JSON object: score → reads → AUROC by seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean

import torch
from torch import Tensor

from benchmarks.command import positive, run
from benchmarks.research.canaries import batch
from benchmarks.research.ranking import auroc
from benchmarks.research.runs import (
    LEVELS,
    REPEATED,
    SEEDS,
    Data,
    Reading,
    Recipe,
    build,
    llama,
    train,
)
from benchmarks.research.texts import manuals
from govray.engine.memorization.comparison import components, composite
from govray.engine.memorization.logit_lens import Lens
from govray.engine.memorization.monitor import logits_in
from govray.engine.memorization.scores import score_rows
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import loss
from govray.governance.policy.memorization_section import Statistic

ROWS = 4
RECIPE = replace(LEVELS, reads=(2, 8, 16), repeated=90, rows_each=ROWS, steps=1560)
EVERY = 50

Parts = Mapping[Statistic, Tensor]
"""Each (records, rows of a record)."""


def aurocs(recipe: Recipe, data: Data, seed: int) -> dict[str, dict[int, float]]:
    """Train one model: score → reads → AUROC."""
    torch.manual_seed(seed)
    model = llama(recipe)
    reading = Reading(recipe, data, seed)
    both = (*data.repeated.trained, *data.repeated.reserve)
    tensors = batch([row for record in both for row in record[:ROWS]])
    first: dict[int, int] = {}
    seen: list[Parts] = []

    def after(step: int) -> None:
        if (step + 1) % EVERY:
            return
        for number, row in reading.read[REPEATED]:
            if row == both[number][0]:
                first.setdefault(number, len(seen) - 1)
        scores = score_rows(
            model,
            tensors,
            logits=logits_in(loss),
            lens=Lens(),
            adapters=Adapters(model, {}, seed=seed),
            rows_per_pass=ROWS * 16,
        )
        seen.append({k: v.view(-1, ROWS) for k, v in components(scores, -1).items()})

    train(model, recipe, reading, after)
    found: dict[str, dict[int, float]] = {}
    held = [*range(len(data.repeated.trained), len(both))]
    for level, reads in enumerate(recipe.reads):
        ours = [n for n, at in first.items() if at >= 0 and n % len(recipe.reads) == level]
        draw = random.Random(f"{seed} {reads}")  # noqa: S311 - a simulation
        before = [first[n] for n in ours] + [first[draw.choice(ours)] for _ in held]
        records = [*ours, *held]
        labels = [True] * len(ours) + [False] * len(held)
        now = {k: v[records] for k, v in seen[-1].items()}
        change = {
            k: now[k] - torch.stack([seen[at][k][n] for n, at in zip(records, before, strict=True)])
            for k in now
        }
        scores = {
            "row": _composite(now, 1),
            "change": _composite(change, 1),
            "sum": _composite(now, 1) + _composite(change, 1),
            "rows-2": _composite(now, 2),
            "rows-4": _composite(now, 4),
        }
        for name, values in scores.items():
            if (ranked := auroc(values, labels)) is not None:
                found.setdefault(name, {})[reads] = ranked
    return found


def _composite(parts: Parts, rows: int) -> Tensor:
    means = {name: each[:, :rows].mean(1) for name, each in parts.items()}
    return composite(means, means)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="benchmarks.research.record_scores", description=__doc__)
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument("--quick", action="store_true", help="100 steps: nothing is memorized")
    options = parser.parse_args(argv)
    recipe = replace(RECIPE, steps=2 * EVERY) if options.quick else RECIPE
    torch.set_num_threads(1)
    kind = manuals(recipe.clean)
    pool = [text for text in kind.pool if len(text.encode()) >= ROWS * (recipe.context + 1) - 1]
    by_score: dict[str, dict[int, list[float]]] = {}
    for seed in options.seeds:
        for name, by_reads in aurocs(
            recipe, build(recipe, seed, pool, kind.packages), seed
        ).items():
            for reads, value in by_reads.items():
                by_score.setdefault(name, {}).setdefault(reads, []).append(value)
    print(f"torch {torch.__version__}, one thread; seeds {options.seeds}")
    print(f"{'score':>8}  " + "  ".join(f"{reads:>2} reads" for reads in recipe.reads))
    for name, found in by_score.items():
        print(f"{name:>8}  " + "  ".join(f"{mean(found[reads]):8.2f}" for reads in found))
    print(json.dumps(by_score))


if __name__ == "__main__":
    sys.exit(run(main))
