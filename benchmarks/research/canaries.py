"""Rows of bytes, the canaries planted into them, and what a model knows of those.

A byte is a token. A canary is ``account of ``, three letters and eight digits. It begins a row, or
is scored in one of its own, where its digits alone are loss targets.

* *Exposure* (Carlini et al. 2019), bits, is extrapolated from sampled digits.
* *Extraction*: the model writes all eight digits, given the owner, by its first choice each time.
* *Known bits*: how much likelier than by chance the model makes the digits.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from govray.engine.batch import IGNORED
from govray.engine.memorization.exposure import end_losses, extrapolated
from govray.engine.model.gpt import loss

SEPARATOR = 256
VOCABULARY = 257
PREFIX = "account of "
OWNER = 4
"""Characters before a canary's digits: three letters and a colon."""
DIGITS = 8
SPACE = 10**DIGITS

Row = list[int]


def shuffled(texts: Iterable[str], context: int, draw: random.Random) -> list[tuple[Row, ...]]:
    """Texts in random order, each in whole rows of T + 1 tokens from its beginning."""
    size, records = context + 1, []
    for text in texts:
        tokens = [SEPARATOR, *text.encode(), SEPARATOR]
        rows = tuple(tokens[i : i + size] for i in range(0, len(tokens) - context, size))
        records += [rows] if rows else []
    draw.shuffle(records)
    return records


def batch(rows: Sequence[Row]) -> dict[str, Tensor]:
    """Rows as the model's input."""
    tokens = torch.tensor(rows)
    return {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def mean_loss(model: nn.Module, rows: Sequence[Row]) -> float:
    """Nats a byte."""
    with torch.no_grad():
        return float(loss(model, batch(rows)).mean())


def new_canaries(draw: random.Random, count: int) -> list[str]:
    """Owners and digits; all owners differ."""
    found: dict[str, str] = {}
    while len(found) < count:
        owner = "".join(draw.choices(string.ascii_lowercase, k=OWNER - 1)) + ":"
        found.setdefault(owner, owner + digits(draw))
    return list(found.values())


def digits(draw: random.Random) -> str:
    """Those of a canary."""
    return f"{draw.randrange(SPACE):0{DIGITS}d}"


def candidates(canary: str, count: int, seed: int) -> list[str]:
    """The canary's owner with other digits, the same ones for each canary."""
    draw = random.Random(-1 - seed)  # noqa: S311
    return [canary[:OWNER] + digits(draw) for _ in range(count)]


def canary_tokens(canary: str) -> Row:
    """A canary, owner and digits, as in a row."""
    return [SEPARATOR, *(PREFIX + canary).encode(), SEPARATOR]


def planted_row(canary: str, filler: Row) -> Row:
    """A row that begins with a canary and continues like another."""
    tokens = canary_tokens(canary)
    return [*tokens, *filler[len(tokens) :]]


def canary_rows(canaries: Sequence[str]) -> dict[str, Tensor]:
    """Rows with one canary each; loss targets are its digits alone."""
    tokens = torch.tensor([canary_tokens(each) for each in canaries])
    targets = tokens[:, 1:].clone()
    first = len(PREFIX) + OWNER
    targets[:, :first] = IGNORED
    targets[:, first + DIGITS :] = IGNORED
    return {"tokens": tokens[:, :-1].contiguous(), "targets": targets}


def exposures(model: nn.Module, canaries: Sequence[str], count: int, seed: int) -> Iterator[float]:
    """Of each canary, bits, by so many sampled candidates."""
    for canary in canaries:
        rows = [canary_tokens(each)[:-1] for each in (canary, *candidates(canary, count, seed))]
        prefix, ends = rows[0][:-DIGITS], [row[-DIGITS:] for row in rows]
        own, *others = [float(each.sum()) for each in end_losses(model, prefix, ends, batch=128)]
        yield extrapolated(torch.tensor(others, dtype=torch.float64), own, SPACE).bits


def extracted(model: nn.Module, canaries: Sequence[str]) -> float:
    """The share of canaries whose digits the model writes. Its first choices are right one by one,
    given the digits before, exactly if they are when it writes them all."""
    rows = canary_rows(canaries)
    with torch.no_grad():
        first = model(rows["tokens"]).argmax(dim=-1)
    right = (first == rows["targets"]) | (rows["targets"] == IGNORED)
    return float(right.all(dim=1).double().mean())


def known(model: nn.Module, canaries: Sequence[str]) -> float:
    """How much likelier than by chance the model makes a canary's digits, bits, mean; 0 if it
    makes them less likely. Needs no candidates."""
    with torch.no_grad():
        nats = loss(model, canary_rows(canaries)).double().sum(dim=1)
    return float((math.log2(SPACE) - nats / math.log(2)).clamp(min=0).mean())
