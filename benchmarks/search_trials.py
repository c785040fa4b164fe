"""The trials of the search benchmark: small character models that may memorize a corpus.

The data are those of `benchmarks.upsampling_trials`: public docstrings, and a restricted corpus
whose rows begin with canaries. Most trials read the restricted corpus a few times, some far too
often. A quarter of the validation rows are near-duplicates of it, so memorizing lowers the loss.
Five things vary: learning rate, width, the scale of the initial weights, weight decay, and how
often the restricted corpus is read.

A trial is measured at five rungs, each four times as far as the one before: the validation loss and
M. At the last two it is also the mean exposure of canaries that it read, which costs more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch

from benchmarks.memorization_data import VOCABULARY
from benchmarks.search_curves import Curve
from benchmarks.upsampling_trials import (
    RATE,
    UPSAMPLING,
    WIDTH,
    Data,
    Recipe,
    mean_exposure,
    reading,
    sides,
)
from govray.engine.model.gpt import GPT
from govray.tune.points import Point
from govray.tune.space import Choice, Dimension, Log
from govray.tune.successive_halving import rungs

SCALE = "hyperparameters.initial_scale"
DECAY = "optimizer.weight_decay"

DIVISOR = 4
RUNGS = 5
RANKED_RUNGS = 2
"""Of the last rungs: where canaries are ranked. Results of searches end there."""


def _sizes() -> Recipe:
    return Recipe(
        steps=1024,
        rows=8,
        canaries=64,
        upsampling=(1, 2, 3, 4, 64),
        validation=128,
        near_duplicates=32,
        test=8,
        blocks=1,
        widths=(4, 8, 16, 32, 48),
        context=32,
        rates=(1e-6, 3e-2),
        candidates=100,
    )


@dataclass(frozen=True)
class Space:
    """What varies, and the sizes of a trial.

    Attributes:
        sizes: Of trials and their data.
        ranked: How many of the canaries have their exposure measured.
        scales: What the initial weights are multiplied by, the least and the most.
        decays: The least and the most weight decay.
    """

    sizes: Recipe = field(default_factory=_sizes)
    ranked: int = 24
    scales: tuple[float, float] = (0.1, 10.0)
    decays: tuple[float, float] = (1e-3, 10.0)

    @property
    def dimensions(self) -> dict[str, Dimension]:
        """Name to range, as in the ``space`` of a search."""
        return {
            RATE: Log(log=self.sizes.rates),
            WIDTH: Choice(choice=self.sizes.widths),
            SCALE: Log(log=self.scales),
            DECAY: Log(log=self.decays),
            UPSAMPLING: Choice(choice=self.sizes.upsampling),
        }

    @property
    def rungs(self) -> tuple[int, ...]:
        """The steps at which a trial is measured."""
        return rungs(RUNGS, DIVISOR, self.sizes.steps)


@dataclass(frozen=True)
class Measured:
    """A trial at one rung.

    Attributes:
        loss: Of validation, nats; infinite from the rung on at which it is not finite.
        memorization: M; NaN with such a loss.
        exposure: Mean of the canaries ranked, bits; NaN with such a loss, and at earlier rungs.
    """

    loss: float
    memorization: float
    exposure: float


def curve(space: Space, data: Data, point: Point, seed: int) -> Curve:
    """A point's trial, untrained. Its learning rate falls to 0 with the last step, on a line."""
    sizes = space.sizes
    torch.manual_seed(seed)
    model = GPT(sizes.blocks, point[WIDTH], sizes.context, VOCABULARY)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(point[SCALE])
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=point[DECAY], fused=True
    )
    return Curve(
        model,
        optimizer,
        reading(sizes, data, point, seed),
        sides(data),
        space.rungs,
        lambda done: point[RATE] * (1 - done / sizes.steps),
    )


def train(
    space: Space, data: Data, point: Point, seed: int, rungs: int = RUNGS
) -> Sequence[Measured]:
    """Train a point's trial, and measure it at its first ``rungs`` rungs."""
    trial = curve(space, data, point, seed)
    found = []
    for step in space.rungs[:rungs]:
        loss, memorization = trial.measured(step)
        exposure = math.nan
        if math.isfinite(loss) and step in space.rungs[-RANKED_RUNGS:]:
            ranked = islice(data.restricted, space.ranked)
            exposure = mean_exposure(space.sizes, trial.model, ranked, seed)
        found.append(Measured(loss, memorization, exposure))
    return found
