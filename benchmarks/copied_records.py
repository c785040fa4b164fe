"""Made-up records of which some are near copies, and questions whose answers are known.

Words are drawn from 30,000, the k-th with a chance in proportion to 1 / (k + 10). Lengths are
log-normal, with a median of 110 words, from 12 to 2,000. Every hundredth record is a copy of one
before it, with some of its words replaced. Everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

VOCABULARY = 30_000
RATES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Shares of words that are replaced in copies."""
PIECE, ABSENT = "piece", "absent"
KINDS = (*(f"{rate:.0%} replaced" for rate in RATES), PIECE, ABSENT)
"""What is asked about: copies, half of a record, and texts of which there is none."""

_CHUNK = 10_000
_EVERY = 100


@dataclass(frozen=True)
class AskedText:
    """A question; ``kind`` is one of `KINDS`."""

    kind: str
    text: bytes


def records(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of each record, in order."""
    for number, text in enumerate(_texts(count, seed)):
        yield f"{number:010}", " ".join(text).encode()


def questions(count: int, asked: int, seed: int) -> Iterator[AskedText]:
    """Questions about ``count`` records, the kinds by turns."""
    draw = np.random.default_rng([seed, 1])
    chosen = set(draw.choice(count, min(asked, count), replace=False).tolist())
    turn = 0
    for number, text in enumerate(_texts(count, seed)):
        if number in chosen:
            kind = KINDS[turn % len(KINDS)]
            yield AskedText(kind, " ".join(_asked(text, kind, draw)).encode())
            turn += 1


def _asked(text: list[str], kind: str, draw: np.random.Generator) -> list[str]:
    if kind == ABSENT:
        return _drawn(len(text), draw)
    if kind == PIECE:
        return text[: max(12, len(text) // 2)]
    return _replaced(text, RATES[KINDS.index(kind)], draw)


def _texts(count: int, seed: int) -> Iterator[list[str]]:
    for start in range(0, count, _CHUNK):
        draw = np.random.default_rng([seed, 0, start])
        size = min(_CHUNK, count - start)
        lengths = np.clip(draw.lognormal(np.log(110), 0.8, size), 12, 2000).astype(int)
        words = _drawn(int(lengths.sum()), draw)
        ends = np.cumsum(lengths).tolist()
        made: list[list[str]] = []
        for number, (end, length) in enumerate(zip(ends, lengths.tolist(), strict=True)):
            text = words[end - length : end]
            if number % _EVERY == _EVERY - 1:
                rate = RATES[number // _EVERY % len(RATES)]
                text = _replaced(made[number - _EVERY // 2], rate, draw)
            made.append(text)
        yield from made


def _replaced(text: list[str], rate: float, draw: np.random.Generator) -> list[str]:
    places = np.flatnonzero(draw.random(len(text)) < rate)
    found = list(text)
    for place, word in zip(places.tolist(), _drawn(len(places), draw), strict=True):
        found[place] = word
    return found


def _drawn(count: int, draw: np.random.Generator) -> list[str]:
    words, bounds = _words()
    found: list[str] = words[np.searchsorted(bounds, draw.random(count))].tolist()
    return found


@cache
def _words() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """The words, and where each ends in [0, 1)."""
    chances = 1 / (np.arange(VOCABULARY) + 10)
    bounds = np.cumsum(chances / chances.sum())
    return np.array([f"w{number}" for number in range(VOCABULARY)], object), bounds[:-1]
