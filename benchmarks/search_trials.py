"""The trials of the search benchmark: small character models that may memorize a corpus.

Two corpora, docstrings of the standard library both: ``public``, read about once, and a small
``restricted`` one, of which a trial's point says how many rows stand in each step. Half of the
validation rows come from neither; the others are restricted rows that were trained on, with a few
letters changed. So the lowest loss belongs to a trial that memorizes.

M is the product's own: the composite deviation of restricted rows read from restricted rows held
back, at the model's output (`govray.engine.deviation`).

Training is plain: one process, AdamW, a constant rate. Each point's curve is trained once, as far
as it is asked for, and the same for every method. What it does not do: search.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils import clip_grad_norm_

from benchmarks.memorization_data import VOCABULARY, Row, batch, cut
from govray.engine.adapters import Adapters
from govray.engine.deviation import measures
from govray.engine.gpt import GPT, loss
from govray.engine.lens import Lens
from govray.engine.memorization import score_rows
from govray.engine.monitor import logits_in
from govray.errors import UsageError
from govray.tune.objective import Report, report
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
        restricted: Rows of the restricted one, and as many held back.
        validation: Rows, half of them near-duplicates.
        blocks, widths, context: Of the model; which width is a point's.
        tau: Limit of M, in spreads of the rows held back. Two halves of so few rows differ by
            half a spread before anything is learned; memorizers by several.
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
    near = [_changed(draw.choice(restricted), draw) for _ in range(fresh)]
    return Data(public, restricted, held_back, (*validation, *near))


def _changed(row: Row, draw: random.Random) -> Row:
    letters = b"abcdefghijklmnopqrstuvwxyz"
    return [draw.choice(letters) if draw.random() < _CHANGED else token for token in row]


class Curve:
    """One point's trial, trained as far as it was asked for."""

    def __init__(self, recipe: Recipe, data: Data, point: Point, seed: int) -> None:
        self._recipe, self._data, self._point = recipe, data, point
        self._draw = random.Random(f"{seed}/{sorted(point.items())}")  # noqa: S311
        torch.manual_seed(seed)
        self._model = GPT(recipe.blocks, point[WIDTH], recipe.context, VOCABULARY)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=point[RATE], betas=(0.9, 0.95), weight_decay=0.01
        )
        self._validation = batch(data.validation)
        self._reports: list[Report] = []
        self.seconds = 0.0

    def report(self, step: int) -> Report:
        """What the trial says after ``step`` steps, a multiple of ``every``."""
        while len(self._reports) * self._recipe.every < step:
            began = time.perf_counter()
            for _ in range(self._recipe.every):
                self._train()
            self._reports.append(self._measure())
            self.seconds += time.perf_counter() - began
        return self._reports[step // self._recipe.every - 1]

    @property
    def steps(self) -> int:
        """How far it was trained."""
        return len(self._reports) * self._recipe.every

    def _train(self) -> None:
        restricted = int(self._point[RESTRICTED])
        rows = self._draw.choices(self._data.restricted, k=restricted)
        rows += self._draw.choices(self._data.public, k=self._recipe.rows - restricted)
        self._optimizer.zero_grad()
        loss(self._model, batch(rows)).mean().backward()
        clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()

    def _measure(self) -> Report:
        with torch.no_grad():
            value = float(loss(self._model, self._validation).mean())
        sides = [
            score_rows(
                self._model,
                batch(rows),
                logits=logits_in(loss),
                lens=Lens(),
                adapters=Adapters(self._model, {}, seed=0),
            )
            for rows in (self._data.restricted, self._data.held_back)
        ]
        found = measures(
            "restricted",
            *sides,
            probe_units=[f"read {n}" for n in range(len(sides[0]))],
            reserve_units=[f"held back {n}" for n in range(len(sides[1]))],
            statistic="composite",
            key=(0,),
            permutations=1,  # only the deviation is used here
        )
        step = (len(self._reports) + 1) * self._recipe.every
        return report(
            step=step,
            loss=value,
            memorization=found[-1].deviation,
            tau=self._recipe.tau,
        )


class Curves:
    """All curves of one seed, by point."""

    def __init__(self, recipe: Recipe, data: Data, seed: int) -> None:
        self._recipe, self._data, self._seed = recipe, data, seed
        self._curves: dict[str, Curve] = {}

    def report(self, point: Point, step: int) -> Report:
        """What the point's trial says after ``step`` steps."""
        key = repr(sorted(point.items()))
        if key not in self._curves:
            self._curves[key] = Curve(self._recipe, self._data, point, self._seed)
        return self._curves[key].report(step)

    @property
    def seconds_per_step(self) -> float:
        """Measured over all that was trained, reports included."""
        curves = self._curves.values()
        return sum(each.seconds for each in curves) / sum(each.steps for each in curves)
