"""How often corpora without effect are flagged, and how often an effect is found.

    python -m benchmarks.null

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
import hashlib
import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from benchmarks import command
from benchmarks.intervals import exact
from benchmarks.memorization_decision import shipped
from govray.data.probe_rows import Probes
from govray.governance.formats.record_columns import RecordColumns
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan
from govray.governance.record.entropy_profile import EntropyProfile, Measure, MonitoredCorpus, Side
from govray.governance.record.incidents import Incidents
from govray.governance.record.prepare_manifest import (
    Manifest,
    Part,
    PreparedCorpus,
    Reserve,
    TokenizerIdentity,
)
from govray.governance.record.prepared_records import PreparedRecords
from govray.governance.record.rank_evidence import top_sizes
from govray.governance.record.row_order import RowOrder

CONTEXT = 7
ROW = CONTEXT + 1
SHARE = 0.2
PROFILES = 4
CORPORA = 10
RECORDS = 500
"""Of a corpus in the table of power: 400 that train and 100 held back, about."""
NOISE = 0.5
"""Of a row beside its record's score, whose deviation is 1."""
GARBAGE = 0.06
TOPICS = 10
EFFECTS = (0.5, 0.75, 1.25, 3.0)
SHARES = (1.0, 0.5, 0.25, 0.125)
_DIGEST = "sha256:" + "0" * 64

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


@dataclass(frozen=True)
class Corpus:
    """A corpus without effect: its rows' scores, and what chooses among them.

    Attributes:
        probes: The package's own choice of rows.
        train: Score of each training row.
        reserve: Score of each reserve row.
        owners: Record of each training row, by number.
        held: Record of each reserve row, by number.
    """

    probes: Probes
    train: npt.NDArray[np.float64]
    reserve: npt.NDArray[np.float64]
    owners: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]


def made_corpus(
    lengths: Sequence[int],
    scores: Sequence[float],
    seed: str,
    *,
    families: Sequence[int] | None = None,
) -> Corpus:
    """A corpus of these records, read at an even pace to the end of its second epoch.

    Args:
        lengths: Rows of each record.
        scores: Of each record.
        families: Of each record the one whose draw decides; by default itself.
    """
    salt = hashlib.sha256(f"salt {seed}".encode()).hexdigest()
    held = Reserve(share=SHARE, salt=salt)
    tokens = np.array([rows * ROW - 1 for rows in lengths], np.int64)
    digests = [
        hashlib.sha256(f"{seed} {number}".encode()).digest() for number in range(len(tokens))
    ]
    entries = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
    drawn_by = entries if families is None else entries[list(families)]
    columns = RecordColumns(entries, tokens, held.splits(drawn_by, tokens))
    part = Part.of(
        columns,
        source="records-00000.parquet",
        file=f"class={'0' * 12}/one-00000.parquet",
        context=CONTEXT,
        rows_per_group=64,
        groups_digest=_DIGEST,
        reserve_groups_digest=_DIGEST,
    )
    prepared = PreparedCorpus(
        corpus="one", credential=_DIGEST, class_digest=_DIGEST, commitment=_DIGEST, parts=(part,)
    )
    manifest = Manifest(
        tokenizer=TokenizerIdentity(name="bytes", digest=_DIGEST, vocabulary=257, separator=256),
        context=CONTEXT,
        reserve=held,
        corpora=(prepared,),
    )
    rows = manifest.train_rows("one")
    stream = StreamPlan(
        id=_DIGEST,
        profile="all",
        corpora=(StreamCorpus(corpus="one", rows=rows),),
        phase=0,
        quota=max(1, math.ceil(2 * rows / PROFILES)),
        epochs=1000,
    )
    plan = BatchPlan(
        seed=int.from_bytes(digests[0][:4], "big"),
        max_steps=PROFILES,
        manifest=_DIGEST,
        context=CONTEXT,
        order=RowOrder(block=8, window=256),
        streams=(stream,),
    )
    found = PreparedRecords(manifest, lambda corpus, number: columns)
    owners = np.array([_most(found, row, "train") for row in range(rows)])
    held_by = np.array(
        [_most(found, row, "reserve") for row in range(manifest.reserve_rows("one"))], np.int64
    )
    noise = np.random.default_rng(plan.seed)
    known = np.array(scores)
    return Corpus(
        probes=Probes(Path("nothing is read"), manifest, plan, found),
        train=known[owners] + noise.normal(0, NOISE, len(owners)),
        reserve=known[held_by] + noise.normal(0, NOISE, len(held_by)),
        owners=owners,
        held=held_by,
    )


def _most(records: PreparedRecords, row: int, split: str) -> int:
    spans = records.row_records("one", row, "reserve" if split == "reserve" else "train")
    return max(spans, key=lambda span: span.stop - span.start).record


Scores = Callable[[random.Random, Sequence[int]], list[float]]
"""Rows of each record → its score."""


def plain(draw: random.Random, lengths: Sequence[int]) -> list[float]:
    """Scores that nothing but the record decides."""
    return [draw.gauss(0, 1) for _ in lengths]


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


class Story:
    """One run's profiles of some corpora, and what they lead to."""

    def __init__(self, section: Monitoring, corpora: Sequence[str]) -> None:
        self._story = Incidents(
            section,
            {name: MonitoredCorpus("trunk", "flag", None, PROFILES) for name in corpora},
        )
        self.flagged: set[str] = set()

    def take(self, step: int, sides: Mapping[str, Sides]) -> None:
        """A profile of these corpora."""
        measures = tuple(_measure(name, *each) for name, each in sorted(sides.items()))
        if measures:
            profile = EntropyProfile(step=step, statistic="composite", measures=measures)
            self.flagged |= {each.corpus for each in self._story.take(profile)}


Sides = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], bool]
"""Scores of records trained on and of held-back ones, and whether these can be evidence."""


def _measure(
    name: str, ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64], tested: bool
) -> Measure:
    trained = np.concatenate([np.ones(len(ours), int), np.zeros(len(theirs), int)])
    best = trained[np.argsort(-np.concatenate([ours, theirs]), kind="stable")].cumsum()
    return Measure(
        corpus=name,
        layer="head",
        probe=Side(records=len(ours), entropy=0.0),
        reserve=Side(records=len(theirs), entropy=0.0),
        top=tuple(int(best[size - 1]) for size in top_sizes(len(trained))),
        tested=tested,
    )


def made(scenario: str, seed: int) -> Corpus:
    """One run's corpus."""
    lengths, scores = SCENARIOS[scenario]
    draw = random.Random(f"{scenario} {seed}")  # noqa: S311 - a simulation
    found = LENGTHS[lengths](draw)
    return made_corpus(found, scores(draw, found), f"{scenario} {seed}")


def sides(
    corpus: Corpus, step: int, rows: int, effect: npt.NDArray[np.float64] | float = 0.0
) -> Sides | None:
    """What a profile compares; None where it is not due.

    Args:
        effect: By which records trained on score higher, of all or of each by number.
    """
    chosen = corpus.probes.choose("one", step, rows)
    if min(len(chosen.trained), len(chosen.reserve)) < 2:
        return None
    records, ours = by_record(chosen.trained, corpus.owners, corpus.train)
    more = effect if isinstance(effect, float) else effect[records]
    return ours + more, by_record(chosen.reserve, corpus.held, corpus.reserve)[1], chosen.tested


def by_record(
    rows: Sequence[int], owners: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The records that some rows are of, and the mean score of each one's rows."""
    some = list(rows)
    records, places = np.unique(owners[some], return_inverse=True)
    return records, np.bincount(places, scores[some]) / np.bincount(places)


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
    section = shipped().model_copy(update={"every": 1, "turns": 1, "rules": None})
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
