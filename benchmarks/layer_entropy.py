"""``python -m benchmarks.layer_entropy``: does one layer's entropy tell rows that were read?

The model and the texts are those of `benchmarks.memorization`: 250 docstrings are read 2 to 32
times, fifty for each number. Each layer's predictive entropy, by the logit lens, ranks them above
docstrings never read. Min-K%++ of the same layer stands beside it: the control, that there was
something to see. AUROC is of single rows; .5 is chance. A figure is the median over seeds, with the
smallest and the largest. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from statistics import median

import torch

from benchmarks.auroc import auroc
from benchmarks.command import positive, run
from benchmarks.machine import processor
from benchmarks.memorization import OTHERS, QUICK_OTHERS
from benchmarks.memorization_data import Recipe, batch, build, library
from benchmarks.memorization_families import gpt
from benchmarks.memorization_training import Reading, train
from govray.engine.memorization.logit_lens import find_lens
from govray.engine.memorization.monitor import logits_in
from govray.engine.memorization.scores import score_rows, untouched
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import loss

SEEDS = (51, 52, 53, 54, 55)

Aurocs = dict[tuple[str, int, str], float | None]
"""Layer, reads, score → AUROC."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layer_entropy", description=__doc__)
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument("--quick", action="store_true", help="a tiny model: nothing is memorized")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(
        f"{processor()}, torch {torch.__version__}, one thread; seeds {options.seeds}", flush=True
    )
    texts = library()
    found = [_seed(QUICK_OTHERS if options.quick else OTHERS, s, *texts) for s in options.seeds]
    report = {}
    print(f"{'layer':<10}{'reads':>5}{'entropy alone':>22}{'Min-K%++':>22}")
    for layer, reads in dict.fromkeys(key[:2] for key in found[0]):
        values = [
            sorted(each[layer, reads, score] or 0.0 for each in found)
            for score in ("entropy", "min_k")
        ]
        report[f"{layer} {reads}"] = [[median(each), each[0], each[-1]] for each in values]
        shown = [f"{median(each):.3f} ({each[0]:.2f} to {each[-1]:.2f})" for each in values]
        print(f"{layer:<10}{reads:>5}{shown[0]:>22}{shown[1]:>22}")
    print(json.dumps({"auroc": report, "seeds": options.seeds}))


def _seed(
    recipe: Recipe, seed: int, docstrings: Sequence[str], sources: dict[str, list[str]]
) -> Aurocs:
    data = build(recipe, seed, docstrings, sources)
    torch.manual_seed(seed)
    model = gpt(recipe)
    train(model, recipe, Reading(recipe, data, seed))
    ours = [record[0] for record in data.docstrings.trained]
    rows = batch([*ours, *(record[0] for record in data.others)])
    with untouched(model):
        lens = find_lens(model, lambda: model(rows["tokens"][:1]))
    scores = score_rows(
        model, rows, logits=logits_in(loss), lens=lens, adapters=Adapters(model, {}, seed=seed)
    )
    times = [recipe.reads[number % len(recipe.reads)] for number in range(len(ours))]
    never = [0] * (len(rows["tokens"]) - len(ours))
    found: Aurocs = {}
    for place, layer in enumerate(scores.layers):
        for reads in recipe.reads:
            chosen = [n for n, each in enumerate([*times, *never]) if each in (0, reads)]
            positives = [n < len(ours) for n in chosen]
            found[layer, reads, "entropy"] = auroc(-scores.entropy[place][chosen], positives)
            found[layer, reads, "min_k"] = auroc(scores.min_k[place][chosen], positives)
    return found


if __name__ == "__main__":
    sys.exit(run(main))
