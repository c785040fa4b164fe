"""Trials that differ in how often they repeat a restricted corpus.

There are two corpora of docstrings from the standard library. Each row of the ``restricted`` one
begins with a canary of its own: an owner and eight digits. A complete trial reads each of them 1 to
64 times, as its point says. The rest is ``public`` rows. Of the validation rows ``near_duplicates``
resemble restricted rows; the others are new. So the lowest loss belongs to a trial that repeats the
restricted corpus often enough to memorize it.

M compares with rows held back, which begin with canaries too. No trial reads them, and no search
sees the test rows.

`benchmarks.search_curves` trains and measures.
"""

from __future__ import annotations

import itertools
import math
import random
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from torch import nn

from benchmarks.memorization_data import (
    DIGITS,
    OWNER,
    SPACE,
    Row,
    canary_tokens,
    candidates,
    planted_row,
    shuffled,
    too_few,
)
from benchmarks.search_curves import Sides
from govray.engine.memorization import exposure
from govray.tune.points import Point

RATE = "optimizer.lr"
WIDTH = "hyperparameters.width"
UPSAMPLING = "data.upsampling.restricted"
_CHANGED = 0.05
"""Share of a near-duplicate's characters that differ."""


@dataclass(frozen=True)
class Recipe:
    """Sizes of a trial.

    Attributes:
        steps: Of a trial that runs to its end.
        rows: Of a step, both corpora together.
        canaries: Rows of the restricted corpus; as many are held back.
        upsampling: How often a trial may read them.
        validation: Rows.
        near_duplicates: How many of these are.
        test: Rows.
        blocks, widths, context: Of the model; a point has one of the widths.
        rates: The lowest and the highest learning rate.
        candidates: Other digit strings from which a canary's rank is estimated.
    """

    steps: int
    rows: int
    canaries: int
    upsampling: tuple[int, ...]
    validation: int
    near_duplicates: int
    test: int
    blocks: int
    widths: tuple[int, ...]
    context: int
    rates: tuple[float, float]
    candidates: int


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


def build(recipe: Recipe, seed: int, docstrings: Sequence[str]) -> Data:
    """One seed's data. Docstrings are split by record, so the test shares no record with another
    part.

    Raises:
        UsageError: This Python's library is too small.
    """
    draw = random.Random(seed)  # noqa: S311 — an experiment's randomness, repeatable
    records = shuffled(docstrings, recipe.context, draw)
    fresh = recipe.validation - recipe.near_duplicates
    sizes = (recipe.canaries, recipe.canaries, fresh, recipe.test)
    if len(records) < 2 * sum(sizes):
        raise too_few(f"{len(records)} docstrings")
    parts = []
    for size in sizes:
        parts.append([record[0] for record in records[:size]])
        records = records[size:]
    canaries = _canaries(draw, 2 * recipe.canaries)
    restricted, held_back = (
        {canary: planted_row(canary, row) for canary, row in zip(some, rows, strict=True)}
        for some, rows in (
            (canaries[: recipe.canaries], parts[0]),
            (canaries[recipe.canaries :], parts[1]),
        )
    )
    trained = list(restricted.values())
    near = [near_duplicate(draw.choice(trained), draw) for _ in range(recipe.near_duplicates)]
    return Data(
        public=tuple(row for record in records for row in record),
        restricted=restricted,
        held_back=held_back,
        validation=(*parts[2], *near),
        test=tuple(parts[3]),
    )


def _canaries(draw: random.Random, count: int) -> list[str]:
    """Canaries of owners that all differ."""
    letters = itertools.product(string.ascii_lowercase, repeat=OWNER - 1)
    owners = draw.sample(["".join(each) for each in letters], count)
    return [f"{owner}:{draw.randrange(SPACE):0{DIGITS}d}" for owner in owners]


def near_duplicate(row: Row, draw: random.Random) -> Row:
    """The row with some characters changed."""
    letters = b"abcdefghijklmnopqrstuvwxyz"
    return [draw.choice(letters) if draw.random() < _CHANGED else token for token in row]


def reading(recipe: Recipe, data: Data, point: Point, seed: int) -> Callable[[], list[Row]]:
    """The rows of each step of a point's trial, one step after another.

    They are fixed: the restricted rows as often as the point says, and public ones, in random
    order. A stopped trial has read its share of both.
    """
    draw = random.Random(f"{seed}/{sorted(point.items())}")  # noqa: S311
    repeated = list(data.restricted.values()) * point[UPSAMPLING]
    count = recipe.steps * recipe.rows - len(repeated)
    public: list[Row] = []
    while len(public) < count:
        public += draw.sample(data.public, len(data.public))
    rows = repeated + public[:count]
    draw.shuffle(rows)
    order = iter(rows)
    return lambda: [next(order) for _ in range(recipe.rows)]


def sides(data: Data) -> Sides:
    """What a trial is measured on."""
    return Sides(data.validation, tuple(data.restricted.values()), tuple(data.held_back.values()))


def mean_exposure(recipe: Recipe, model: nn.Module, canaries: Iterable[str], seed: int) -> float:
    """Bits, over canaries: by rank among sampled digits, extrapolated if none is likelier."""
    bits = []
    for canary in canaries:
        others = candidates(canary, recipe.candidates, seed)
        secret, *rest = (canary_tokens(each)[:-1] for each in (canary, *others))
        found = exposure.measure(model, secret, rest, SPACE, batch=512)
        resolved = math.log2(found.scored + 1)
        sampled = found.sampled_bits
        bits.append(found.bits if sampled is None or sampled >= resolved else sampled)
    return mean(bits)
