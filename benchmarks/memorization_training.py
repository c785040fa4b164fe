"""How the memorization benchmark trains: which rows a step reads, and the step itself.

Training is plain: one process, AdamW, a cosine schedule. A governed step costs more, so the
monitor's share of it is smaller than here.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.memorization_data import Data, Recipe, Row, batch, designated
from govray.engine.model.gpt import loss
from govray.errors import UsageError

DOCSTRINGS = "docstrings"
"""Name of the corpus that is read again and again."""


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
        self._docstrings = self._again(
            [
                (number, row)
                for number, record in enumerate(data.docstrings.trained)
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
        self.read[DOCSTRINGS] = []

    def step(self, step: int) -> list[Row]:
        """The rows of a step; more than usual if it has many canaries.

        Raises:
            UsageError: No row is left that is read once.
        """
        again = [next(self._docstrings) for _ in range(self._recipe.docstring_rows)]
        self.read[DOCSTRINGS] += again
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
) -> list[float]:
    """Train for all the recipe's steps.

    Args:
        model: Its weights change.
        recipe: Steps and learning rate.
        reading: Gives each step's rows.
        after: Called after each step, with its number.

    Returns:
        Seconds of each step.
    """
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    seconds = []
    for step in range(recipe.steps):
        began = time.perf_counter()
        tensors = batch(reading.step(step))
        schedule(optimizer, recipe.learning_rate, step, recipe.steps, 100)
        optimizer.zero_grad()
        loss(model, tensors).mean().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        after(step)
    return seconds


def schedule(optimizer: Any, rate: float, step: int, steps: int, warm_up: int) -> None:
    """Set a step's learning rate: after so many steps ``rate``, and at the end a tenth of it."""
    decay = 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, (step + 1) / warm_up) * decay
