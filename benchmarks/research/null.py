"""How often corpora without effect are flagged, and how often an effect is found.

    python -m benchmarks.research.null

No model is trained. Records get a score of their own, and their rows score it with noise. All that
follows is the package's own code. It draws the reserve and the plan's order, and chooses rows. It
ranks them and decides over a run, as the shipped policy says.

* ``null``: of a thousand runs of each scenario, how many flag a corpus that has no more effect than
  the policy tolerates. It is alone in its domain, where the procedure flags most. Beside it are
  exact bounds, one-sided at 95 %. The seeds are the numbers from 0.
* ``power``: the share of runs that flag a corpus among ten in its domain. It is by the share of its
  records that have the effect, and by the effect in standard deviations of a record's score.

Scenarios: how records' lengths are distributed, how scores follow the corpus's order, 6 % records
of random bytes, and effects at the tolerance's edge. There the odds ratio is the tolerated one at
the threshold where it is largest. Thresholds among the best hundredth do not count: there a shift
of normal scores has any odds ratio.

The last line is one JSON object. ``exceeded`` names the scenarios whose lower bound lies above
the policy's rate; it should be empty.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

import numpy as np

from benchmarks import command
from benchmarks.intervals import exact
from benchmarks.research.watch import every_step
from benchmarks.research.worlds import (
    CORPORA,
    PROFILES,
    Corpus,
    Story,
    made_corpus,
    plain,
    sides,
)
from govray.governance.policy.memorization_section import Monitoring

RECORDS = 500
"""Of a corpus in the table of power: 400 that train and 100 held back, about."""
GARBAGE = 0.06
TOPICS = 10
EFFECTS = (0.5, 0.75, 1.25, 3.0)
SHARES = (1.0, 0.5, 0.25, 0.125)

Lengths = Callable[[random.Random], list[int]]
"""Rows of each record of a corpus."""

LENGTHS: Mapping[str, Lengths] = {
    "equal": lambda draw: [3] * 200,
    "lognormal": lambda draw: [max(1, int(draw.lognormvariate(1, 1.2))) for _ in range(200)],
    "by_length": lambda draw: [60 if draw.random() < 0.05 else 1 for _ in range(300)],
    "few": lambda draw: [8] * 30,
    "huge": lambda draw: [200 if draw.random() < 0.1 else 2 for _ in range(60)],
}
LONG, EASIER = 20, 2.0
"""In ``by_length``, records of more rows score so much higher."""


Scores = Callable[[random.Random, Sequence[int]], list[float]]
"""Rows of each record → its score."""


def by_length(draw: random.Random, lengths: Sequence[int]) -> list[float]:
    """Long records are easier."""
    return [draw.gauss(0, 1) + EASIER * (rows >= LONG) for rows in lengths]


def sorted_by_topic(draw: random.Random, lengths: Sequence[int]) -> list[float]:
    """Each topic is easier than the one before it."""
    return [
        draw.gauss(0, 0.5) + 3 * (n * TOPICS // len(lengths)) / TOPICS for n in range(len(lengths))
    ]


def clustered(draw: random.Random, lengths: Sequence[int]) -> list[float]:
    """Neighbours are about one thing, and equally easy."""
    topics = [draw.gauss(0, 1.5) for _ in range(TOPICS)]
    return [draw.gauss(0, 0.5) + topics[n * TOPICS // len(lengths)] for n in range(len(lengths))]


def garbage(draw: random.Random, lengths: Sequence[int]) -> list[float]:
    """Some records are random bytes, which lie far out."""
    return [
        -14 * (1 + draw.random()) if draw.random() < GARBAGE else draw.gauss(0, 1) for _ in lengths
    ]


SCENARIOS: Mapping[str, tuple[str, Scores]] = {
    "equal": ("equal", plain),
    "lognormal": ("lognormal", plain),
    "by_length": ("by_length", by_length),
    "few": ("few", plain),
    "huge": ("huge", plain),
    "sorted_by_topic": ("equal", sorted_by_topic),
    "clustered": ("equal", clustered),
    "garbage": ("equal", garbage),
}


# Families of scores: (draws a score, moves it by an effect, the share of scores above it).


def _student(value: float) -> float:
    """The share above, of Student's t with three degrees of freedom."""
    x = value / math.sqrt(3)
    return 0.5 - (x / (1 + x * x) + math.atan(x)) / math.pi


@dataclass(frozen=True)
class Family:
    """A distribution of scores, and what an effect does to it.

    Attributes:
        at: The score with this share of scores above it.
        above: The share of scores above one.
        moved: What a score becomes by an effect of this size.
        back: The score that an effect of this size moves here.
    """

    at: Callable[[float], float]
    above: Callable[[float], float]
    moved: Callable[[float, float], float]
    back: Callable[[float, float], float]

    def edge(self, odds: float) -> float:
        """The effect whose largest odds ratio, among the best hundredth and more, is ``odds``."""
        low, high = 0.0, 5.0
        thresholds = [self.at(share / 1000) for share in range(10, 1000)]
        for _ in range(40):
            effect = (low + high) / 2
            ratios = [
                _odds(self.above(self.back(t, effect))) / _odds(self.above(t)) for t in thresholds
            ]
            low, high = (effect, high) if max(ratios) < odds else (low, effect)
        return low


def _odds(share: float) -> float:
    return share / (1 - share) if share < 1 else math.inf


def _inverse(above: Callable[[float], float]) -> Callable[[float], float]:
    def at(share: float) -> float:
        low, high = -100.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if above(middle) > share else (low, middle)
        return low

    return at


def _shifted(at: Callable[[float], float], above: Callable[[float], float]) -> Family:
    return Family(at, above, lambda x, by: x + by, lambda x, by: x - by)


FAMILIES: Mapping[str, Family] = {
    "logistic": _shifted(lambda s: math.log((1 - s) / s), lambda x: 1 / (1 + math.exp(x))),
    "normal": _shifted(lambda s: NormalDist().inv_cdf(1 - s), lambda x: 1 - NormalDist().cdf(x)),
    "student": _shifted(_inverse(_student), _student),
    "exponential": Family(
        lambda s: -math.log(s),
        lambda x: math.exp(-x),
        lambda x, by: x * (1 + by),
        lambda x, by: x / (1 + by),
    ),
}


def made(scenario: str, seed: int) -> Corpus:
    """One run's corpus."""
    lengths, scores = SCENARIOS[scenario]
    draw = random.Random(f"{scenario} {seed}")  # noqa: S311 - a simulation
    found = LENGTHS[lengths](draw)
    return made_corpus(found, scores(draw, found), f"{scenario} {seed}")


def null(scenario: str, runs: int, section: Monitoring) -> int:
    """How many runs flag the one corpus of a scenario, which has no effect."""
    found = 0
    for seed in range(runs):
        corpus, story = made(scenario, seed), Story(section, ["one"])
        for step in range(PROFILES):
            if (each := sides(corpus, step, section.probe_rows)) is not None:
                story.take(step, {"one": each})
        found += bool(story.flagged)
    return found


def edge(family: Family, runs: int, section: Monitoring, odds: float) -> int:
    """How many runs flag a corpus whose effect is at the tolerance's edge."""
    effect, found = family.edge(odds), 0
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        story = Story(section, ["one"])
        for step in range(PROFILES):
            ours, theirs = (
                np.array([family.at(share) for share in draw.uniform(1e-9, 1, rows)])
                for rows in (400, 100)
            )
            moved = np.array([family.moved(score, effect) for score in ours])
            story.take(step, {"one": (moved, theirs, True)})
        found += bool(story.flagged)
    return found


def power(runs: int, section: Monitoring) -> dict[tuple[float, float], int]:
    """Share and effect → how many runs flag the first of ten corpora, which alone has an effect."""
    found: dict[tuple[float, float], int] = dict.fromkeys(product(SHARES, EFFECTS), 0)
    names = [f"corpus-{number}" for number in range(CORPORA)]
    lengths = [3] * RECORDS
    for seed in range(runs):
        draw = random.Random(f"power {seed}")  # noqa: S311 - a simulation
        first, *others = (
            made_corpus(lengths, plain(draw, lengths), f"{name} {seed}") for name in names
        )
        without = [
            {
                name: each
                for name, corpus in zip(names[1:], others, strict=True)
                if (each := sides(corpus, step, section.probe_rows)) is not None
            }
            for step in range(PROFILES)
        ]
        order = np.array([draw.random() for _ in lengths])
        for share, effect in found:
            story = Story(section, names)
            for step, rest in enumerate(without):
                grown = (order < share) * effect * min(1.0, 2 * (step + 1) / PROFILES)
                own = sides(first, step, section.probe_rows, grown)
                story.take(step, rest if own is None else {**rest, names[0]: own})
            found[share, effect] += names[0] in story.flagged
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=command.positive, default=1000, help="of each scenario")
    parser.add_argument("--power-runs", type=command.positive, default=50, help="of each effect")
    options = parser.parse_args()
    section = every_step()
    odds = section.tolerance("head")
    rate = section.fdr
    flagged = {name: null(name, options.runs, section) for name in SCENARIOS}
    flagged |= {
        f"edge_{name}": edge(family, options.runs, section, odds)
        for name, family in FAMILIES.items()
    }
    found = {}
    for name, count in flagged.items():
        low, high = exact(count, options.runs, level=0.9)
        found[name] = {"flagged": count / options.runs, "low": low, "high": high}
        print(f"{name:18} {count / options.runs:.3f} of runs flag, {low:.3f} to {high:.3f}")
    table: dict[str, dict[str, float]] = {}
    for (share, effect), count in power(options.power_runs, section).items():
        table.setdefault(f"{share:g}", {})[f"{effect:g}"] = count / options.power_runs
    for label, by_effect in table.items():
        print(f"{float(label):5.0%} of records with an effect of:", by_effect)
    exceeded = sorted(name for name, each in found.items() if each["low"] > rate)
    print(
        json.dumps(
            {
                "rate": rate,
                "odds": odds,
                "runs": options.runs,
                "null": found,
                "power": table,
                "exceeded": exceeded,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
