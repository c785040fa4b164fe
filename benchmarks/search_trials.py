"""The trials of the search benchmark: small character models that may memorize a corpus.

There are two corpora of docstrings from the standard library. Each row of the ``restricted`` one
begins with a canary of its own. A complete trial reads each of them 1 to 64 times, as its point
says: most a few times, some far too often. The rest is ``public`` rows. A quarter of the validation
rows resemble restricted rows; the others are new. So memorizing lowers the loss. Four more things
vary: learning rate, width, the scale of the initial weights, and weight decay.

A trial is measured at five rungs, each four times as far as the one before: the validation loss and
M. M compares rows read with rows held back, which begin with canaries too. It is the product's own,
at the model's output: the log of the odds ratio that rows read surely have
(`govray.governance.record.e_process.least_odds`). At the last two rungs it is also the mean
exposure of canaries that the trial read, which costs more. Measuring leaves no trace.
"""

from __future__ import annotations

import itertools
import math
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.research.canaries import (
    OWNER,
    SPACE,
    VOCABULARY,
    Row,
    batch,
    canary_tokens,
    candidates,
    digits,
    mean_loss,
    planted_row,
    shuffled,
)
from benchmarks.research.texts import too_few
from govray.engine.memorization import exposure
from govray.engine.memorization.comparison import measures
from govray.engine.memorization.logit_lens import Lens
from govray.engine.memorization.monitor import logits_in
from govray.engine.memorization.scores import score_rows
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.governance.record.e_process import least_odds
from govray.tune.points import Point
from govray.tune.space import Choice, Dimension, Log
from govray.tune.successive_halving import rungs

RATE = "optimizer.lr"
WIDTH = "hyperparameters.width"
SCALE = "hyperparameters.initial_scale"
DECAY = "optimizer.weight_decay"
UPSAMPLING = "data.upsampling.restricted"

DIVISOR = 4
RUNGS = 5
RANKED_RUNGS = 2
"""Of the last rungs: where canaries are ranked. Results of searches end there."""
_CHANGED = 0.05
"""Share of a near-duplicate's characters that differ."""


@dataclass(frozen=True)
class Space:
    """What varies, and the sizes of a trial.

    Attributes:
        steps: Of a trial that runs to its end.
        rows: Of a step, both corpora together.
        canaries: Rows of the restricted corpus; as many are held back.
        validation: Rows.
        near_duplicates: How many of these are.
        test: Rows that no search sees.
        context: Of the model.
        candidates: Other digit strings from which a canary's rank is estimated.
        ranked: How many of the canaries have their exposure measured.
        rates, widths, scales, decays, upsampling: What a point has one of, or one between.
    """

    steps: int = 1024
    rows: int = 8
    canaries: int = 64
    validation: int = 128
    near_duplicates: int = 32
    test: int = 8
    context: int = 32
    candidates: int = 100
    ranked: int = 24
    rates: tuple[float, float] = (1e-6, 3e-2)
    widths: tuple[int, ...] = (4, 8, 16, 32, 48)
    scales: tuple[float, float] = (0.1, 10.0)
    decays: tuple[float, float] = (1e-3, 10.0)
    upsampling: tuple[int, ...] = (1, 2, 3, 4, 64)

    @property
    def dimensions(self) -> dict[str, Dimension]:
        """Name to range, as in the ``space`` of a search."""
        return {
            RATE: Log(log=self.rates),
            WIDTH: Choice(choice=self.widths),
            SCALE: Log(log=self.scales),
            DECAY: Log(log=self.decays),
            UPSAMPLING: Choice(choice=self.upsampling),
        }

    @property
    def rungs(self) -> tuple[int, ...]:
        """The steps at which a trial is measured."""
        return rungs(RUNGS, DIVISOR, self.steps)


@dataclass(frozen=True)
class Data:
    """One seed's.

    Attributes:
        public: Rows.
        restricted: Canary to the row that begins with it.
        held_back: The same for rows that no trial reads.
        validation, test: Rows.
    """

    public: tuple[Row, ...]
    restricted: dict[str, Row]
    held_back: dict[str, Row]
    validation: tuple[Row, ...]
    test: tuple[Row, ...]


@dataclass(frozen=True)
class Measured:
    """A trial at one rung.

    Attributes:
        loss: Of validation, nats; infinite where it is not finite.
        memorization: M; NaN with such a loss.
        exposure: Mean of the canaries ranked, bits; NaN with such a loss, and at earlier rungs.
    """

    loss: float
    memorization: float
    exposure: float


def build(space: Space, seed: int, docstrings: Sequence[str]) -> Data:
    """One seed's data. Docstrings are split by record, so the test shares no record with another
    part.

    Raises:
        UsageError: This Python's library is too small.
    """
    draw = random.Random(seed)  # noqa: S311 — an experiment's randomness, repeatable
    records = shuffled(docstrings, space.context, draw)
    fresh = space.validation - space.near_duplicates
    sizes = (space.canaries, space.canaries, fresh, space.test)
    if len(records) < 2 * sum(sizes):
        raise too_few(f"{len(records)} docstrings")
    parts = []
    for size in sizes:
        parts.append([record[0] for record in records[:size]])
        records = records[size:]
    letters = itertools.product(string.ascii_lowercase, repeat=OWNER - 1)
    owners = draw.sample(["".join(each) for each in letters], 2 * space.canaries)
    canaries = [f"{owner}:{digits(draw)}" for owner in owners]
    fillers = [*parts[0], *parts[1]]
    planted = [(each, planted_row(each, row)) for each, row in zip(canaries, fillers, strict=True)]
    restricted, held_back = dict(planted[: space.canaries]), dict(planted[space.canaries :])
    trained = list(restricted.values())
    near = [_near_duplicate(draw.choice(trained), draw) for _ in range(space.near_duplicates)]
    return Data(
        public=tuple(row for record in records for row in record),
        restricted=restricted,
        held_back=held_back,
        validation=(*parts[2], *near),
        test=tuple(parts[3]),
    )


def _near_duplicate(row: Row, draw: random.Random) -> Row:
    """The row with some characters changed."""
    letters = b"abcdefghijklmnopqrstuvwxyz"
    return [draw.choice(letters) if draw.random() < _CHANGED else token for token in row]


def train(space: Space, data: Data, point: Point, seed: int) -> Sequence[Measured]:
    """Train a point's trial to its end, and measure it at each rung.

    Its learning rate falls to 0 with the last step, on a line.
    """
    torch.manual_seed(seed)
    model = GPT(1, point[WIDTH], space.context, VOCABULARY)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(point[SCALE])
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=point[DECAY], fused=True
    )
    rows = _reading(space, data, point, seed)
    found = []
    for step in range(1, space.steps + 1):
        optimizer.param_groups[0]["lr"] = point[RATE] * (1 - (step - 1) / space.steps)
        optimizer.zero_grad()
        loss(model, batch(rows())).mean().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step in space.rungs:
            found.append(_measured(space, data, model, seed, step))
    return found


def _reading(space: Space, data: Data, point: Point, seed: int) -> Callable[[], list[Row]]:
    """The rows of each step of a point's trial, one step after another.

    They are fixed: the restricted rows as often as the point says, and public ones, in random
    order. A stopped trial has read its share of both.
    """
    draw = random.Random(f"{seed}/{sorted(point.items())}")  # noqa: S311
    repeated = list(data.restricted.values()) * point[UPSAMPLING]
    count = space.steps * space.rows - len(repeated)
    public: list[Row] = []
    while len(public) < count:
        public += draw.sample(data.public, len(data.public))
    rows = repeated + public[:count]
    draw.shuffle(rows)
    order = iter(rows)
    return lambda: [next(order) for _ in range(space.rows)]


def _measured(space: Space, data: Data, model: nn.Module, seed: int, step: int) -> Measured:
    value = mean_loss(model, data.validation)
    if not math.isfinite(value):
        return Measured(math.inf, math.nan, math.nan)
    bits = math.nan
    if step in space.rungs[-RANKED_RUNGS:]:
        ranked = itertools.islice(data.restricted, space.ranked)
        bits = mean(_exposure(space, model, canary, seed) for canary in ranked)
    return Measured(value, _effect(model, data), bits)


def _effect(model: nn.Module, data: Data) -> float:
    """How much better the model surely knows rows read than rows held back: the log of an odds
    ratio."""
    scores = [
        score_rows(
            model,
            batch([*rows.values()]),
            logits=logits_in(loss),
            lens=Lens(),
            adapters=Adapters(model, {}, seed=0),
        )
        for rows in (data.restricted, data.held_back)
    ]
    found = measures(
        "restricted",
        *scores,
        probe_units=[f"read {n}" for n in range(len(data.restricted))],
        reserve_units=[f"held back {n}" for n in range(len(data.held_back))],
        statistic="composite",
        key=(0,),
    )
    return math.log(least_odds(found))


def _exposure(space: Space, model: nn.Module, canary: str, seed: int) -> float:
    """Bits: by rank among sampled digits, extrapolated if none is likelier."""
    others = candidates(canary, space.candidates, seed)
    secret, *rest = (canary_tokens(each)[:-1] for each in (canary, *others))
    found = exposure.measure(model, secret, rest, SPACE, batch=512)
    sampled = found.sampled_bits
    if sampled is None or sampled >= math.log2(found.scored + 1):
        return found.bits
    return sampled
