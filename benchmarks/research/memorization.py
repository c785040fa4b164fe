"""``python -m benchmarks.research.memorization``: which scores know what a model has memorized?

Small models train on texts that this machine has, once for each seed. The parts:

``canaries``  The built-in GPT reads docstrings, with canaries planted 1 to 256 times. AUROC of the
              scores against *exposure* of at least 10 bits, over canaries that were planted and
              that were not. Exposure derives from the loss, as the scores do. So there is also the
              composite's AUROC against the number of plantings. ``natural_16`` is of means of
              sixteen docstrings, repeated ones against reserve.
``families``  Two model families on two kinds of text. The product's composite and published
              baselines (`benchmarks.research.membership`) rank rows read 16 times or more above
              rows never read. ``auroc_other_family`` is the composite's, of the Llama.
``layers``    Each layer's predictive entropy alone, by the logit lens, against Min-K%++ of the same
              layer: the control, that there was something to see.

Figures are means over seeds; those of layers medians, with the smallest and the largest. The last
line is one JSON object. The composite's weights are fixed in the product, so nothing is fitted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.command import names, positive, run
from benchmarks.intervals import spread
from benchmarks.research.canaries import Row, batch, canary_rows, exposures
from benchmarks.research.ranking import (
    Ranking,
    auroc,
    auroc_of_means,
    averaged,
    mean_of,
    rankings,
    shown,
    table,
)
from benchmarks.research.runs import (
    FAMILIES,
    LEVELS,
    QUICK,
    QUICK_LEVELS,
    SEEDS,
    Data,
    Recipe,
    build,
    gpt,
    trained,
)
from benchmarks.research.texts import code, library, prose
from govray.engine.memorization.comparison import components, composite
from govray.engine.memorization.logit_lens import Lens, find_lens
from govray.engine.memorization.monitor import logits_in
from govray.engine.memorization.scores import RowScores, score_rows, untouched
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import loss

MEMORIZED = 10.0
"""Exposure, in bits, from which a canary counts as memorized."""
SIGNALS = ("composite", "entropy", "surprise", "min_k")

Texts = tuple[list[str], dict[str, list[str]]]
"""Docstrings, and source by package."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.research.memorization", description=__doc__
    )
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument("--quick", action="store_true", help="40 steps: nothing is memorized")
    parser.add_argument("--parts", type=names(PARTS), default=[*PARTS], help="comma-separated")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # for a model this small; and bits depend on the number
    print(f"torch {torch.__version__}, one thread; seeds {options.seeds}", flush=True)
    texts = library()
    print(json.dumps({p: PARTS[p](texts, options.seeds, options.quick) for p in options.parts}))


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


def canaries(texts: Texts, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """The figures over all seeds. An AUROC is None if a seed has no positive or no negative."""
    recipe = QUICK if quick else Recipe()
    found = []
    for seed in seeds:
        with _timed(f"canaries, seed {seed}"):
            found.append(_planted(recipe, build(recipe, seed, *texts), seed))
    report = {
        kind: {name: mean_of([each[kind][name] for each in found]) for name in found[0][kind]}
        for kind in ("auroc", "auroc_natural_16", "auroc_by_plantings")
    }
    for kind in ("exposure_by_plantings", "entropy_by_plantings"):
        report[kind] = {
            name: median(value for each in found for value in each[kind][name])
            for name in found[0][kind]
        }
    baselines = _over([each["rankings"] for each in found])
    for name in SIGNALS:
        auroc_of, natural = report["auroc"][name], report["auroc_natural_16"][name]
        print(f"{name:<12} canaries {shown(auroc_of)}, means of docstrings {shown(natural)}")
    print("plantings   median exposure, bits   median entropy, nats   AUROC against never planted")
    for count, bits in report["exposure_by_plantings"].items():
        nats = report["entropy_by_plantings"][count]
        ranked = shown(report["auroc_by_plantings"].get(count))
        print(f"{count:>9}   {bits:>21.1f}   {nats:>20.2f}   {ranked:>27}")
    print(table(baselines))
    return report | {"baselines": {name: asdict(each) for name, each in baselines.items()}}


def _planted(recipe: Recipe, data: Data, seed: int) -> dict[str, Any]:
    """One seed. Half of what was never read is the composite's reference; the rest is ranked."""
    model, reading = trained(recipe, data, seed, gpt)
    half = len(data.held_out) // 2
    ranked = [*data.planted, *data.held_out[half:]]
    plantings = [*data.planted.values()] + [0] * (len(ranked) - len(data.planted))
    signals = _signals(model, canary_rows(ranked), canary_rows(data.held_out[:half]))
    bits = [*exposures(model, ranked, recipe.candidates, seed)]
    corpus = data.repeated
    middle = len(corpus.reserve) // 2
    reference = _first(corpus.reserve[:middle])
    read, never = (
        _signals(model, _first(rows), reference)
        for rows in (corpus.trained, corpus.reserve[middle:])
    )
    by_plantings = {}
    for count in recipe.plantings:
        chosen = [n for n, each in enumerate(plantings) if each in (0, count)]
        by_plantings[count] = auroc(
            signals["composite"][chosen], [plantings[n] > 0 for n in chosen]
        )
    counts = (*recipe.plantings, 0)
    each_of = {
        name: {
            count: [v for v, own in zip(values, plantings, strict=True) if own == count]
            for count in counts
        }
        for name, values in (("bits", bits), ("nats", (-signals["entropy"]).tolist()))
    }
    return {
        "auroc": {n: auroc(signals[n], [each >= MEMORIZED for each in bits]) for n in SIGNALS},
        "auroc_natural_16": {n: auroc_of_means(read[n], never[n], seed) for n in SIGNALS},
        "auroc_by_plantings": by_plantings,
        "exposure_by_plantings": each_of["bits"],
        "entropy_by_plantings": each_of["nats"],
        "rankings": rankings(recipe, data, model, reading, seed, gpt),
    }


def _first(records: Sequence[Sequence[Row]]) -> dict[str, Tensor]:
    return batch([record[0] for record in records])


def _signals(
    model: nn.Module, rows: dict[str, Tensor], reference: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Signal → score of each row, higher if better known."""
    ours, theirs = (components(_scores(model, each, Lens()), -1) for each in (rows, reference))
    return {**ours, "composite": composite(ours, theirs)}


def _scores(model: nn.Module, rows: dict[str, Tensor], lens: Lens) -> RowScores:
    return score_rows(
        model,
        rows,
        logits=logits_in(loss),
        lens=lens,
        adapters=Adapters(model, {}, seed=0),
        rows_per_pass=64,
    )


def _over(found: Sequence[dict[str, Ranking]]) -> dict[str, Ranking]:
    return {name: averaged([each[name] for each in found]) for name in found[0]}


def families(texts: Texts, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """Family → kind → method → how well it ranks."""
    recipe = QUICK_LEVELS if quick else LEVELS
    kinds = {"code": code(texts[1], recipe.clean), "prose": prose(recipe.clean)}
    print("prose is of " + ", ".join(f"{n} ({it})" for n, it in kinds["prose"].licences.items()))
    report: dict[str, Any] = {}
    for family, made in FAMILIES.items():
        for name, kind in kinds.items():
            found = []
            for seed in seeds:
                with _timed(f"{family}, {name}, seed {seed}"):
                    data = build(recipe, seed, kind.pool, kind.packages)
                    model, reading = trained(recipe, data, seed, made)
                    found.append(rankings(recipe, data, model, reading, seed, made))
            over = _over(found)
            print(f"\n{family}, {name}", table(over), sep="\n")
            report.setdefault(family, {})[name] = {n: asdict(each) for n, each in over.items()}
    other = mean_of([kind["composite"]["auroc"] for kind in report["llama"].values()])
    print(f"auroc_other_family {shown(other)}")
    return report | {"auroc_other_family": other}


def layers(texts: Texts, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """Layer and reads → AUROC of entropy alone and of Min-K%++, over seeds."""
    recipe = QUICK_LEVELS if quick else LEVELS
    found = []
    for seed in seeds:
        with _timed(f"layers, seed {seed}"):
            found.append(_by_layer(recipe, build(recipe, seed, *texts), seed))
    report = {}
    print(f"{'layer and reads':<16}{'entropy alone':>22}{'Min-K%++':>22}")
    for key in found[0]:
        values = [spread(each[key][place] or 0.0 for each in found) for place in (0, 1)]
        cells = [f"{middle:.3f} ({low:.2f} to {high:.2f})" for middle, low, high in values]
        print(f"{key:<16}{cells[0]:>22}{cells[1]:>22}")
        report[key] = values
    return report


def _by_layer(
    recipe: Recipe, data: Data, seed: int
) -> dict[str, tuple[float | None, float | None]]:
    model, _ = trained(recipe, data, seed, gpt)
    records = (*data.repeated.trained, *data.others)
    rows = _first(records)
    with untouched(model):
        lens = find_lens(model, lambda: model(rows["tokens"][:1]))
    scores = _scores(model, rows, lens)
    members = len(data.repeated.trained)
    times = [recipe.reads[number % len(recipe.reads)] for number in range(members)]
    times += [0] * len(data.others)
    found = {}
    for place, layer in enumerate(scores.layers):
        for reads in recipe.reads:
            chosen = [n for n, each in enumerate(times) if each in (0, reads)]
            positive = [times[n] > 0 for n in chosen]
            found[f"{layer} {reads}"] = (
                auroc(-scores.entropy[place][chosen], positive),
                auroc(scores.min_k[place][chosen], positive),
            )
    return found


PARTS = {"canaries": canaries, "families": families, "layers": layers}


if __name__ == "__main__":
    sys.exit(run(main))
