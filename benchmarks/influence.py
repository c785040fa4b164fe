"""``python -m benchmarks.influence``: does the estimate order corpora as leaving them out does?

A small model is trained on eight corpora, and again without each. For held-out outputs of every
corpus the truth is the change of the output's loss: without the corpus, less with it. Beside it
stand what estimates say of the same outputs:

* ``estimate``: what ``govray influence`` adds up, from all rows instead of a sample;
* ``left_out``: the same terms, less what the other corpora would have taught in its place, since
  a step divides by the targets that are left;
* ``unscaled``: as ``estimate``, without the optimizer's second moments;
* ``final_only``: as ``estimate``, with the final weights alone;
* ``sequences``: the share of the output's four-byte sequences that the corpus has;
* ``random``: the control.

For each output corpora are ranked. The figure is Spearman's correlation of both rankings, the mean
over outputs, and its 95 % bootstrap interval over outputs. ``first`` is how often the corpus with
the largest true change comes first. ``ratio`` is the median of estimate over truth, where the truth
is above its own median. Its distance from 1 is how far sizes are off.

The corpus that trains an adapter alone is not ranked. Without it the outputs' losses must be the
same, bit for bit, and its estimate is 0.

Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from benchmarks.command import positive, run
from benchmarks.influence_training import (
    CORPORA,
    EVERYTHING,
    QUICK,
    REMOVABLE,
    UPPER_HALF,
    Bench,
    Recipe,
    State,
    output_losses,
    shared_sequences,
)
from benchmarks.search import spearman
from govray.engine.influence.optimizer_scale import optimizer_scale
from govray.engine.influence.output_gradient import output_gradient
from govray.engine.influence.routed_direction import routed_direction
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups

SEEDS = (17, 18)
RANKED = tuple(sorted((*EVERYTHING, *UPPER_HALF)))
METHODS = ("estimate", "left_out", "unscaled", "final_only", "sequences", "random")
_RESAMPLES = 2000


@dataclass(frozen=True)
class Output:
    """One held-out text: the truth and what each method says, by ranked corpus."""

    corpus: str
    truth: Mapping[str, float]
    said: Mapping[str, Mapping[str, float]]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.influence", description=__doc__)
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument("--quick", action="store_true", help="twelve steps: nothing is learned")
    options = parser.parse_args(argv)
    recipe = QUICK if options.quick else Recipe()
    torch.set_num_threads(1)  # the model is small, and bits depend on the number
    began = time.perf_counter()
    outputs: list[Output] = []
    unmoved = True
    for seed in options.seeds:
        found, same = run_seed(recipe, seed)
        outputs += found
        unmoved = unmoved and same
        print(f"seed {seed}: {len(outputs)} outputs", file=sys.stderr, flush=True)
    report = summary(outputs)
    report |= {"adapter_corpus_unmoved": unmoved, "seconds": time.perf_counter() - began}
    print(table(report))
    print(json.dumps(report))


def run_seed(recipe: Recipe, seed: int) -> tuple[list[Output], bool]:
    """The outputs of one seed, and whether the adapter's corpus moved none of them."""
    bench = Bench(recipe, seed)
    states = bench.train()
    texts = [(corpus, row) for corpus in CORPORA for row in bench.held_out[corpus]]
    rows = torch.stack([row for _, row in texts])
    whole = _final_losses(bench, states, rows)
    others = {corpus: _final_losses(bench, bench.train(without=corpus), rows) for corpus in CORPORA}
    same = all(torch.equal(others[corpus], whole) for corpus in REMOVABLE)
    estimates = estimated(bench, states, rows)
    draw = random.Random(seed)  # noqa: S311 - the control
    outputs = []
    for place, (corpus, row) in enumerate(texts):
        said = {
            name: {c: float(by_corpus[c][place]) for c in RANKED}
            for name, by_corpus in estimates.items()
        }
        read = range(recipe.steps)
        said["sequences"] = {c: shared_sequences(row.tolist(), bench.rows(c, read)) for c in RANKED}
        said["random"] = {c: draw.random() for c in RANKED}
        truth = {c: float(others[c][place] - whole[place]) for c in RANKED}
        outputs.append(Output(corpus, truth, said))
    return outputs, same


def _final_losses(bench: Bench, states: Sequence[State], rows: Tensor) -> Tensor:
    model = bench.model()
    model.load_state_dict(dict(states[-1].weights))
    return output_losses(model, rows, bench.recipe.prompt)


def estimated(
    bench: Bench, states: Sequence[State], rows: Tensor
) -> dict[str, dict[str, list[float]]]:
    """Method → ranked corpus → estimate for each output."""
    zero = {corpus: [0.0] * len(rows) for corpus in RANKED}
    found = {
        name: {corpus: list(each) for corpus, each in zero.items()}
        for name in ("estimate", "left_out", "unscaled", "final_only")
    }
    last = 0
    for state in states:
        steps, last = range(last, state.step), state.step
        for name, scaled in (("estimate", True), ("unscaled", False)):
            parts = by_group(bench, state, steps, rows, scaled=scaled)
            _add(found[name], parts, left_out=False)
            if scaled:
                _add(found["left_out"], parts, left_out=True)
    whole = by_group(bench, states[-1], range(bench.recipe.steps), rows, scaled=True)
    _add(found["final_only"], whole, left_out=False)
    return found


Parts = Mapping[str, Mapping[str, Sequence[float]]]
"""Layer group → corpus that trains it → its term for each output."""


def _add(found: dict[str, list[float]], parts: Parts, *, left_out: bool) -> None:
    for by_corpus in parts.values():
        sums = [sum(each) for each in zip(*by_corpus.values(), strict=True)]
        share = 1 / len(by_corpus)  # all read equally many rows
        for corpus, values in by_corpus.items():
            for place, (value, total) in enumerate(zip(values, sums, strict=True)):
                term = (value - share * total) / (1 - share) if left_out else value
                found[corpus][place] += term


def by_group(bench: Bench, state: State, steps: range, rows: Tensor, *, scaled: bool) -> Parts:
    """What each ranked corpus's reads in some steps did to each output, by layer group."""
    model = bench.model()
    model.load_state_dict(dict(state.weights))
    model.double()
    groups = layer_groups(model)
    adapters = bench.adapters(model)
    scales = optimizer_scale(state.moments, state.values) if scaled else None
    readers = {
        group: [corpus for corpus in RANKED if group in bench.routes[corpus].weights]
        for group in groups
    }
    summed = {corpus: _summed_gradient(model, bench, corpus, steps) for corpus in RANKED}
    targets = bench.recipe.rows * bench.recipe.context
    parts: dict[str, dict[str, list[float]]] = {
        group: {corpus: [] for corpus in some} for group, some in readers.items()
    }
    for row in rows.tolist():
        _, gradient = output_gradient(model, adapters, row, bench.recipe.prompt)
        for group, some in readers.items():
            factor = 1 / (targets * len(some))
            direction = routed_direction(gradient, groups, {group: factor}, scales)
            for corpus in some:
                value = sum(
                    float((part * summed[corpus][name]).sum()) for name, part in direction.items()
                )
                parts[group][corpus].append(value)
    return parts


def _summed_gradient(model: GPT, bench: Bench, corpus: str, steps: range) -> dict[str, Tensor]:
    """Σ η_s · gradient over the rows of some steps, by parameter."""
    rows = bench.rows(corpus, steps)
    rates = torch.tensor([bench.rate(step) for step in steps for _ in range(bench.recipe.rows)])
    losses = loss(model, {"tokens": rows[:, :-1], "targets": rows[:, 1:]})
    named = dict(model.named_parameters())
    gradients = torch.autograd.grad((losses.sum(1) * rates).sum(), list(named.values()))
    return dict(zip(named, gradients, strict=True))


def summary(outputs: Sequence[Output]) -> dict[str, Any]:
    """The figures of each method."""
    report: dict[str, Any] = {"outputs": len(outputs), "corpora": len(RANKED), "methods": {}}
    sizes = sorted(abs(each.truth[c]) for each in outputs for c in RANKED)
    middle = sizes[len(sizes) // 2]
    for name in METHODS:
        each = [
            spearman([o.truth[c] for c in RANKED], [o.said[name][c] for c in RANKED])
            for o in outputs
        ]
        known = [value for value in each if value == value]  # NaN where all scores are equal
        ratios = [
            o.said[name][c] / o.truth[c] for o in outputs for c in RANKED if o.truth[c] > middle
        ]
        own = [o for o in outputs if o.corpus in RANKED]
        report["methods"][name] = {
            "spearman": mean(known) if known else None,
            "interval": _interval(known) if known else None,
            "first": mean(_first(o.said[name]) == _first(o.truth) for o in outputs),
            "own_first": mean(_first(o.said[name]) == o.corpus for o in own),
            "ratio": median(ratios) if ratios else None,
        }
    report["true_own_first"] = mean(
        _first(o.truth) == o.corpus for o in outputs if o.corpus in RANKED
    )
    return report


def _first(values: Mapping[str, float]) -> str:
    return max(values, key=lambda corpus: values[corpus])


def _interval(values: Sequence[float]) -> list[float]:
    draw = random.Random(0)  # noqa: S311 - resampling
    means = sorted(mean(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    tail = round(0.025 * _RESAMPLES)
    return [means[tail], means[-1 - tail]]


def table(report: Mapping[str, Any]) -> str:
    """One line for each method."""
    lines = [f"{'method':<12}{'Spearman':>10}{'95 %':>18}{'first':>8}{'own first':>11}{'ratio':>9}"]
    for name, each in report["methods"].items():
        low, high = each["interval"] or (float("nan"), float("nan"))
        shown = [each["spearman"], each["ratio"]]
        correlation, ratio = (float("nan") if value is None else value for value in shown)
        lines.append(
            f"{name:<12}{correlation:>10.2f}{f'[{low:.2f}, {high:.2f}]':>18}{each['first']:>8.2f}"
            f"{each['own_first']:>11.2f}{ratio:>9.2f}"
        )
    lines.append(f"true: own corpus first in {report['true_own_first']:.2f} of outputs")
    lines.append(f"the adapter's corpus moved no output: {report['adapter_corpus_unmoved']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
