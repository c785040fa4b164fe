"""Training runs on texts of which some are read again and again, and others once at most.

* ``repeated``: records that are read repeatedly, all equally often or by levels;
* clean corpora: texts by package, each row read at most once;
* canaries at the start of rows of other records, once for each planting. Twice as many are never
  planted;
* accounts of the same form that are read once and not ranked. From them the model learns that an
  unknown owner's digits are open. Otherwise every account that it reads is repeated. It would then
  give an unknown owner another's digits, wrong and with a low entropy.

Each corpus is split at random, by record, into records that are trained on and a reserve.

Training is plain: one process, AdamW, a cosine schedule.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.research.canaries import (
    VOCABULARY,
    Row,
    batch,
    new_canaries,
    planted_row,
    shuffled,
)
from benchmarks.research.texts import too_few
from govray.engine.huggingface import CausalLM
from govray.engine.model.gpt import GPT, loss
from govray.errors import UsageError

SEEDS = (17, 18, 19)
REPEATED = "docstrings"
"""Name of the corpus that is read again and again."""


@dataclass(frozen=True)
class Recipe:
    """Sizes of model, data and training.

    Attributes:
        steps: Of training.
        rows: Of a step.
        repeated_rows: Rows of the repeated corpus in a step.
        repeated: Records of it that are trained on; the reserve has as many.
        reads: How often the rows of such a record are read, in turn; empty: all equally often.
        rows_each: Rows of such a record that are read.
        others: Records like them, never trained on, at most.
        references: Models trained without any of the ranked rows.
        reference_steps: Of training each.
        clean: Number of clean corpora.
        plantings: How often a canary is planted.
        canaries: Canaries for each number of plantings.
        once: Accounts that are read once and not ranked.
        candidates: Other digit strings from which a canary's rank is estimated.
        blocks, width, heads, context: Of the model.
        learning_rate: At its highest.
        every: Steps between two entropy profiles.
        probe_rows: Rows of each side of a probe.
    """

    steps: int = 3200
    rows: int = 4
    repeated_rows: int = 2
    repeated: int = 128
    reads: tuple[int, ...] = ()
    rows_each: int = 2
    others: int = 1000
    references: int = 1
    reference_steps: int = 1200
    clean: int = 16
    plantings: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    canaries: int = 3
    once: int = 384
    candidates: int = 256
    blocks: int = 4
    width: int = 96
    heads: int = 4
    context: int = 32
    learning_rate: float = 1.5e-3
    every: int = 500
    probe_rows: int = 16


QUICK = Recipe(
    steps=40,
    rows=16,
    repeated_rows=6,
    repeated=40,
    clean=3,
    plantings=(1, 32),
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
    reference_steps=5,
)
LEVELS = Recipe(
    steps=1550,
    repeated=250,
    rows_each=1,
    reads=(2, 4, 8, 16, 32),
    clean=8,
    plantings=(),
    canaries=0,
    once=0,
    reference_steps=600,
)
"""250 rows and no canary, fifty rows for each number of reads."""
QUICK_LEVELS = replace(
    QUICK, repeated=20, rows_each=1, reads=(2, 16), plantings=(), canaries=0, once=0
)

Family = Callable[[Recipe], nn.Module]
"""Recipe → model, its weights drawn from torch's global generator."""


def gpt(recipe: Recipe) -> nn.Module:
    """The product's own: learned positions, LayerNorm, GELU."""
    return GPT(recipe.blocks, recipe.width, recipe.context, VOCABULARY, heads=recipe.heads)


def llama(recipe: Recipe) -> nn.Module:
    """A Llama of transformers: rotary positions, RMSNorm, SwiGLU, no biases.

    Raises:
        CouldNotCheck: transformers is not installed.
    """
    return CausalLM(
        recipe.context,
        VOCABULARY,
        config={
            "model_type": "llama",
            "hidden_size": recipe.width,
            "intermediate_size": 8 * recipe.width // 3,
            "num_hidden_layers": recipe.blocks,
            "num_attention_heads": recipe.heads,
            "num_key_value_heads": recipe.heads,
            "max_position_embeddings": recipe.context,
        },
    )


FAMILIES: Mapping[str, Family] = MappingProxyType({"gpt": gpt, "llama": llama})


@dataclass(frozen=True)
class Corpus:
    """Rows by record, each T + 1 tokens.

    Attributes:
        trained: Records that are trained on.
        reserve: Records that are not.
    """

    trained: tuple[tuple[Row, ...], ...]
    reserve: tuple[tuple[Row, ...], ...]


@dataclass(frozen=True)
class Data:
    """One seed's data.

    Attributes:
        repeated: Read again and again.
        others: Records like them, of which nothing is read.
        apart: The rest of such records, which only reference models read.
        clean: By package, read once at most.
        planted: Canary → plantings.
        held_out: Canaries that are never planted.
        canary_rows: One row for each planting and each account read once, in random order.
    """

    repeated: Corpus
    others: tuple[tuple[Row, ...], ...]
    apart: tuple[tuple[Row, ...], ...]
    clean: Mapping[str, Corpus]
    planted: Mapping[str, int]
    held_out: tuple[str, ...]
    canary_rows: tuple[Row, ...]


def build(
    recipe: Recipe, seed: int, pool: Sequence[str], packages: Mapping[str, Sequence[str]]
) -> Data:
    """One seed's data, of the texts of a `texts.Kind`.

    Raises:
        UsageError: This Python's library is too small, for instance without its sources.
    """
    draw = random.Random(seed)  # noqa: S311 — an experiment's randomness, repeatable
    context = recipe.context
    records = shuffled(pool, context, draw)
    members, reserve, rest = (
        records[: recipe.repeated],
        records[recipe.repeated : 2 * recipe.repeated],
        records[2 * recipe.repeated :],
    )
    clean = {}
    for name, texts in packages.items():
        found = shuffled(texts, context, draw)
        kept = max(recipe.probe_rows, len(found) // 4)
        if len(found) >= 2 * recipe.probe_rows:
            clean[name] = Corpus(tuple(found[kept:]), tuple(found[:kept]))
    largest = sorted(clean, key=lambda name: (-len(clean[name].trained), name))[: recipe.clean]
    if len(rest) < recipe.repeated or len(largest) < recipe.clean:
        raise too_few(f"{len(records)} records and {len(clean)} packages")
    count = len(recipe.plantings) * recipe.canaries
    accounts = new_canaries(draw, 3 * count + recipe.once)
    planted = {
        text: recipe.plantings[n // recipe.canaries] for n, text in enumerate(accounts[:count])
    }
    plantings = [text for text, repeats in planted.items() for _ in range(repeats)]
    plantings += accounts[3 * count :]
    draw.shuffle(plantings)
    fillers = [draw.choice(rest) for _ in plantings]
    used = set(map(id, fillers))
    unread = [record for record in rest if id(record) not in used]
    others = unread[: min(recipe.others, len(unread) // 2)]
    ranked = set(map(id, others))
    return Data(
        repeated=Corpus(tuple(members), tuple(reserve)),
        others=tuple(others),
        apart=tuple(record for record in rest if id(record) not in ranked),
        clean={name: clean[name] for name in largest},
        planted=planted,
        held_out=tuple(accounts[count : 3 * count]),
        canary_rows=tuple(
            planted_row(text, filler[0]) for text, filler in zip(plantings, fillers, strict=True)
        ),
    )


def designated(corpus: str, number: int, record: Sequence[Row]) -> Row:
    """The row that a record is measured by: any, with equal chances."""
    return record[random.Random(f"{corpus} {number}").randrange(len(record))]  # noqa: S311


class Reading:
    """Which rows each step reads, and of each corpus which rows were read so far, in order.

    Args:
        recipe: Sizes.
        data: The seed's.
        seed: Orders the rows.
    """

    def __init__(self, recipe: Recipe, data: Data, seed: int) -> None:
        self._recipe = recipe
        self._draw = random.Random(seed)  # noqa: S311
        self._data = data
        self._repeated = self._again(
            [
                (number, row)
                for number, record in enumerate(data.repeated.trained)
                for row in record[: recipe.rows_each]
                for _ in range(recipe.reads[number % len(recipe.reads)] if recipe.reads else 1)
            ]
        )
        self._clean = [
            (name, number, row)
            for name, corpus in data.clean.items()
            for number, record in enumerate(corpus.trained)
            for row in record
        ]
        self._draw.shuffle(self._clean)
        # Taken from the end: the rows that records are measured by come first, and then the others.
        self._clean.sort(
            key=lambda each: each[2] == designated(*each[:2], data.clean[each[0]].trained[each[1]])
        )
        self._planted: dict[int, list[Row]] = {}
        for row in data.canary_rows:
            self._planted.setdefault(self._draw.randrange(recipe.steps), []).append(row)
        self.read: dict[str, list[tuple[int, Row]]] = {name: [] for name in data.clean}
        self.read[REPEATED] = []

    def step(self, step: int) -> list[Row]:
        """The rows of a step; more than usual if it has many canaries.

        Raises:
            UsageError: No row is left that is read once.
        """
        again = [next(self._repeated) for _ in range(self._recipe.repeated_rows)]
        self.read[REPEATED] += again
        rows = [*self._planted.get(step, []), *(row for _, row in again)]
        while len(rows) < self._recipe.rows:
            if not self._clean:
                raise UsageError(
                    f"the texts that are read once last for {step} of {self._recipe.steps} steps",
                    do="Run it with a Python that has more packages, with their sources",
                )
            name, number, row = self._clean.pop()
            self.read[name].append((number, row))
            rows.append(row)
        return rows

    def _again(self, rows: list[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
        while True:
            self._draw.shuffle(rows)
            yield from rows


def train(
    model: nn.Module,
    recipe: Recipe,
    reading: Reading,
    after: Callable[[int], None] = lambda step: None,
) -> None:
    """Train for all the recipe's steps; ``after`` is called after each, with its number."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(recipe.steps):
        tensors = batch(reading.step(step))
        schedule(optimizer, recipe.learning_rate, step, recipe.steps, 100)
        optimizer.zero_grad()
        loss(model, tensors).mean().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        after(step)


def schedule(optimizer: Any, rate: float, step: int, steps: int, warm_up: int) -> None:
    """Set a step's learning rate: after so many steps ``rate``, and at the end a tenth of it."""
    decay = 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, (step + 1) / warm_up) * decay


def trained(recipe: Recipe, data: Data, seed: int, family: Family) -> tuple[nn.Module, Reading]:
    """A model of the seed's first weights, trained; and what it read."""
    torch.manual_seed(seed)
    model, reading = family(recipe), Reading(recipe, data, seed)
    train(model, recipe, reading)
    return model, reading


def references(recipe: Recipe, data: Data, seed: int, family: Family) -> list[nn.Module]:
    """Models trained alike, without the rows that are ranked; weights and order differ.

    They read the same clean rows, and other texts of the pool in the place of those that are read
    again. No canary is planted.
    """
    shorter = replace(recipe, steps=recipe.reference_steps, reads=())
    without = replace(data, repeated=Corpus(data.apart, ()), canary_rows=())
    seeds = [-1 - seed * recipe.references - number for number in range(recipe.references)]
    return [trained(shorter, without, own, family)[0] for own in seeds]
