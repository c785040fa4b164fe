"""The trials of the search benchmark: small character models that may memorize a corpus.

There are two corpora of docstrings from the standard library. ``public`` is read about once.
``restricted`` is small, and a trial's point says how many of its rows are in each step. Half of the
validation rows come from neither. The others are restricted rows that were trained on, with a few
letters changed. So the lowest loss belongs to a trial that memorizes.

`benchmarks.search_curves` trains and measures.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.memorization_data import VOCABULARY, Row, cut
from benchmarks.search_curves import Curve, Sides
from govray.engine.model.gpt import GPT
from govray.errors import UsageError
from govray.tune.points import Point

RATE = "optimizer.lr"
WIDTH = "hyperparameters.width"
RESTRICTED = "data.rows_per_step.restricted"
_CHANGED = 0.05
"""Share of a near-duplicate's characters that differ."""


@dataclass(frozen=True)
class Recipe:
    """Sizes of a trial.

    Attributes:
        steps: Of a trial that runs to its end.
        every: Steps between two reports.
        rows: Of a step, both corpora together.
        public: Rows of the public corpus.
        restricted: Rows of the restricted one; as many are held back.
        validation: Rows, half of them near-duplicates.
        blocks, widths, context: Of the model; a point has one of the widths.
        tau: Limit of M, in spreads of the rows held back. Two halves of so few rows differ by half
            a spread before anything is learned. A memorizer's differ by several.
    """

    steps: int = 243
    every: int = 9
    rows: int = 8
    public: int = 1536
    restricted: int = 24
    validation: int = 48
    blocks: int = 2
    widths: tuple[int, ...] = (4, 8, 16, 32, 48)
    context: int = 48
    tau: float = 1.0

    @property
    def steps_per_epoch(self) -> float:
        """Steps that read as many rows as the public corpus has."""
        return self.public / self.rows


@dataclass(frozen=True)
class Data:
    """Rows of one seed."""

    public: tuple[Row, ...]
    restricted: tuple[Row, ...]
    held_back: tuple[Row, ...]
    validation: tuple[Row, ...]


def build(recipe: Recipe, seed: int, docstrings: Sequence[str]) -> Data:
    """One seed's data: the first row of each docstring.

    Raises:
        UsageError: This Python's library is too small.
    """
    draw = random.Random(seed)  # noqa: S311 — an experiment's randomness, repeatable
    rows = [record[0] for text in docstrings if (record := cut(text, recipe.context))]
    draw.shuffle(rows)
    fresh = recipe.validation // 2
    sizes = (recipe.public, recipe.restricted, recipe.restricted, fresh)
    if len(rows) < sum(sizes):
        raise UsageError(
            f"{len(rows)} docstrings are too few, {sum(sizes)} are needed",
            do="Run it with a Python that has its library's sources",
        )
    parts = []
    for size in sizes:
        parts.append(tuple(rows[:size]))
        rows = rows[size:]
    public, restricted, held_back, validation = parts
    near = [near_duplicate(draw.choice(restricted), draw) for _ in range(fresh)]
    return Data(public, restricted, held_back, (*validation, *near))


def near_duplicate(row: Row, draw: random.Random) -> Row:
    """The row with some characters changed."""
    letters = b"abcdefghijklmnopqrstuvwxyz"
    return [draw.choice(letters) if draw.random() < _CHANGED else token for token in row]


def curve(recipe: Recipe, data: Data, point: Point, seed: int) -> Curve:
    """A point's trial, untrained."""
    draw = random.Random(f"{seed}/{sorted(point.items())}")  # noqa: S311
    torch.manual_seed(seed)
    model = GPT(recipe.blocks, point[WIDTH], recipe.context, VOCABULARY)
    restricted = int(point[RESTRICTED])

    def rows() -> list[Row]:
        read = draw.choices(data.restricted, k=restricted)
        return read + draw.choices(data.public, k=recipe.rows - restricted)

    sides = Sides(data.validation, data.restricted, data.held_back)
    return Curve(model, point[RATE], rows, sides, recipe.every)
