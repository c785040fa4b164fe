"""Reports of a search's trials: curves of small character models, trained in this process.

A curve is trained once, as far as needed, and is the same for every search and limit. Training is
plain: one process, the optimizer that it is given. M is the product's own, at the model's output:
the log of the odds ratio that rows read surely have, beside rows held back
(`govray.governance.record.e_process.least_odds`).

Measuring leaves no trace, so a model that is trained again without it has the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.memorization_data import Row, batch
from govray.engine.memorization.comparison import measures
from govray.engine.memorization.logit_lens import Lens
from govray.engine.memorization.monitor import logits_in
from govray.engine.memorization.scores import score_rows
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import loss
from govray.governance.record.e_process import least_odds


@dataclass(frozen=True)
class Sides:
    """What a trial is measured on.

    Attributes:
        validation: Rows of its loss.
        read, held_back: Rows that M compares.
    """

    validation: tuple[Row, ...]
    read: tuple[Row, ...]
    held_back: tuple[Row, ...]


class Curve:
    """One point's trial.

    Args:
        model: Untrained.
        optimizer: Of the model's parameters.
        rows: The rows of the next step.
        sides: What it is measured on.
        reports: The steps at which it is measured, rising.
        rate: The learning rate by the number of steps done; the optimizer's own throughout if None.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        rows: Callable[[], Sequence[Row]],
        sides: Sides,
        reports: Sequence[int],
        rate: Callable[[int], float] | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.steps = 0
        self.next_rows = rows
        self._sides = sides
        self._reports = reports
        self.rate = rate
        self._measured: list[tuple[float, float]] = []

    def measured(self, step: int) -> tuple[float, float]:
        """Validation loss and M after ``step`` steps, one of ``reports``.

        After the first loss that is not finite there is nothing to measure: infinity and NaN.
        """
        place = self._reports.index(step)
        while len(self._measured) <= place:
            self.train(self._reports[len(self._measured)] - self.steps)
            value = mean_loss(self.model, self._sides.validation)
            self._measured.append(
                (value, effect(self.model, self._sides.read, self._sides.held_back))
                if math.isfinite(value)
                else (math.inf, math.nan)
            )
        return self._measured[place]

    def train(self, steps: int) -> None:
        """Train this many steps more."""
        for _ in range(steps):
            if self.rate is not None:
                self.optimizer.param_groups[0]["lr"] = self.rate(self.steps)
            self.optimizer.zero_grad()
            loss(self.model, batch(self.next_rows())).mean().backward()
            clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.steps += 1


def mean_loss(model: nn.Module, rows: Sequence[Row]) -> float:
    """Nats a target, over all rows."""
    with torch.no_grad():
        return float(loss(model, batch(rows)).mean())


def effect(model: nn.Module, read: Sequence[Row], held_back: Sequence[Row]) -> float:
    """How much better the model surely knows ``read`` than ``held_back``: the log of an odds
    ratio."""
    scores = [
        score_rows(
            model,
            batch(rows),
            logits=logits_in(loss),
            lens=Lens(),
            adapters=Adapters(model, {}, seed=0),
        )
        for rows in (read, held_back)
    ]
    found = measures(
        "restricted",
        *scores,
        probe_units=[f"read {n}" for n in range(len(read))],
        reserve_units=[f"held back {n}" for n in range(len(held_back))],
        statistic="composite",
        key=(0,),
    )
    return math.log(least_odds(found))
