"""``python -m benchmarks.research.exposure``: does an extrapolated exposure err?

``govray runs audit`` ranks a canary exactly among 10,000 candidates or fewer. Among more it fits a
skew-normal distribution to the losses of a thousand and reads the rank in its tail. Here the space
is small enough to be counted whole. So each canary has its exact rank beside the extrapolated one.

A character model reads accounts: three letters and digits, each some times, in random order. For
each account the losses of all 10^digits secrets are computed, digit by digit, and samples of them
are drawn. Three groups of canaries are told apart by their exact exposure:

* ``sampled``: below log2(samples + 1), where samples alone could say it;
* ``beyond``: above that, where only the fit speaks;
* ``first``: rank 1, the most that there is. An extrapolation is cut off there.

Errors are extrapolated less exact, in bits, one for each canary and sample.

Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.command import positive, run
from govray.engine.memorization.exposure import exact, extrapolated
from govray.engine.model.gpt import GPT

SEEDS = (17, 18, 19)
GROUPS = ("sampled", "beyond", "first")
OWNER = 4
"""Characters of an account before its digits: three letters and a colon."""

_LETTERS = "bcdfghjklmnpqrstvwxz"
_VOCABULARY = 128  # ASCII; 0 begins a row
_ROWS = 32
_CHUNK = 4096


@dataclass(frozen=True)
class Recipe:
    """Sizes of the benchmark.

    Attributes:
        digits: Of an account.
        repeats: How often an account is in the data.
        accounts: Of each number of repeats.
        once: Accounts that are in it once and not ranked.
        epochs: How often the data is read.
        width: Of the model.
        samples: Candidates that a distribution is fitted to.
        draws: Samples for each canary.
    """

    digits: int = 5
    repeats: tuple[int, ...] = (0, 2, 4, 8, 12, 16)
    accounts: int = 6
    once: int = 300
    epochs: int = 7
    width: int = 64
    samples: int = 1000
    draws: int = 2


QUICK = Recipe(digits=4, repeats=(0, 8, 16), accounts=4, once=60, samples=200)


@dataclass(frozen=True)
class Ranked:
    """One canary under one sample, in bits."""

    group: str
    exact: float
    extrapolated: float

    @property
    def error(self) -> float:
        return self.extrapolated - self.exact


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.research.exposure", description=__doc__
    )
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument("--digits", type=int, choices=(4, 5, 6), help="of an account; default: 5")
    parser.add_argument("--quick", action="store_true", help="twelve canaries of four digits")
    options = parser.parse_args(argv)
    recipe = QUICK if options.quick else Recipe()
    if options.digits:
        recipe = replace(recipe, digits=options.digits)
    torch.set_num_threads(1)  # the model is small, and bits depend on the number
    ranked = []
    for seed in options.seeds:
        ranked += run_seed(recipe, seed)
        print(f"seed {seed}: {len(ranked)} ranked", file=sys.stderr, flush=True)
    report = summary(ranked, recipe)
    print(_table(report))
    print(json.dumps(report))


def run_seed(recipe: Recipe, seed: int) -> list[Ranked]:
    """Train a model, and rank each canary exactly and by samples."""
    draw = random.Random(seed)  # noqa: S311 - data of a benchmark
    count = len(recipe.repeats) * recipe.accounts
    owners = draw.sample(
        ["".join(each) for each in product(_LETTERS, repeat=3)], count + recipe.once
    )
    space = 10**recipe.digits
    accounts = [f"{owner}:{draw.randrange(space):0{recipe.digits}d}" for owner in owners]
    times = [each for each in recipe.repeats for _ in range(recipe.accounts)] + [1] * recipe.once
    model = _trained(
        recipe,
        [text for text, often in zip(accounts, times, strict=True) for _ in range(often)],
        seed,
    )
    found = []
    for text in accounts[:count]:
        losses = every_loss(model, text[:OWNER], recipe.digits)
        secret = int(text[OWNER:])
        own = float(losses[secret])
        others = torch.cat([losses[:secret], losses[secret + 1 :]])
        counted = exact(others, own)
        group = "first" if counted.rank == 1 else "beyond"
        if counted.bits < math.log2(recipe.samples + 1):
            group = "sampled"
        for number in range(recipe.draws):
            generator = torch.Generator().manual_seed(number)
            some = torch.randperm(len(others), generator=generator)[: recipe.samples]
            fitted = extrapolated(others[some], own, space)
            found.append(Ranked(group, counted.bits, fitted.bits))
    return found


def every_loss(model: nn.Module, owner: str, digits: int) -> Tensor:
    """Loss of each secret behind an owner, nats, float64 of shape (10^digits,).

    A secret's loss is the sum of its digits'. What begins alike is computed once.
    """
    ten = torch.tensor(list(b"0123456789"))
    contexts = torch.tensor([[0, *owner.encode()]])
    losses = torch.zeros(1, dtype=torch.float64)
    with torch.no_grad():
        for place in range(digits):
            if place:
                next_digit = ten.repeat(len(contexts))[:, None]
                contexts = torch.cat([contexts.repeat_interleave(10, dim=0), next_digit], dim=1)
            each = [
                model(some)[:, -1].double().log_softmax(dim=1)[:, ten]
                for some in contexts.split(_CHUNK)
            ]
            losses = (losses[:, None] - torch.cat(each)).flatten()
    return losses


def summary(ranked: Sequence[Ranked], recipe: Recipe) -> dict[str, Any]:
    """Errors of each group, in bits; None where a group is empty."""
    groups: dict[str, Any] = {}
    for name in GROUPS:
        errors = [each.error for each in ranked if each.group == name]
        groups[name] = {
            "rankings": len(errors),
            "mean_error": mean(errors) if errors else None,
            "median_absolute_error": median(map(abs, errors)) if errors else None,
            "largest_absolute_error": max(map(abs, errors)) if errors else None,
        }
    return {
        "candidates": 10**recipe.digits,
        "samples": recipe.samples,
        "sampling_ranks_up_to": math.log2(recipe.samples + 1),
        "most_bits": math.log2(10**recipe.digits),
        "groups": groups,
    }


def _trained(recipe: Recipe, texts: Sequence[str], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    rows = torch.tensor([[0, *text.encode()] for text in texts])
    model = GPT(blocks=2, width=recipe.width, context=rows.shape[1], vocabulary=_VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(recipe.epochs):
        for some in torch.randperm(len(rows), generator=generator).split(_ROWS):
            batch = rows[some]
            logits = model(batch[:, :-1])
            optimizer.zero_grad()
            F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()
    return model.eval()


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['candidates']:,} candidates, {report['samples']} sampled, which rank up to "
        f"{report['sampling_ranks_up_to']:.1f} of {report['most_bits']:.1f} bits",
        f"{'group':<10} {'rankings':>9} {'mean error':>11} {'median |error|':>15} {'largest':>8}",
    ]
    for name, row in report["groups"].items():
        figures = [row["mean_error"], row["median_absolute_error"], row["largest_absolute_error"]]
        shown = ["–" if each is None else f"{each:.2f}" for each in figures]
        lines.append(f"{name:<10} {row['rankings']:>9} {shown[0]:>11} {shown[1]:>15} {shown[2]:>8}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
