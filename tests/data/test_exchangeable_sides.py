"""Both sides of a probe are exchangeable, in whatever order a corpus lies.

Records get a score that follows from their topic alone, so no corpus has an effect. A rank test of
the two sides may then find one in as many corpora as its level says, at any step.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from govray.data.probe_rows import Probes, designated, newest_rows
from govray.governance.policy.record_commitment import entry
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.prepare_manifest import Reserve
from govray.governance.record.row_order import RowOrder
from tests.support.manifests import SECRET, corpus, make_manifest, one_stream, records_of
from tests.support.table import each_row

CORPORA = 120
RECORDS = 600
STEPS = 40
"""Of the first epoch."""
ROWS = 32
LEVEL = 0.05
MOST = 14
"""Of so many corpora more than these are found in one of 1,000 tries, where sides are alike."""

Topics = Callable[[random.Random], list[float]]


def sorted_by_topic(draw: random.Random) -> list[float]:
    return [6.0 * place / RECORDS for place in range(RECORDS)]


def clustered(draw: random.Random) -> list[float]:
    """Topics of some forty records each, one after the other."""
    found: list[float] = []
    while len(found) < RECORDS:
        found += [draw.gauss(0, 2)] * draw.randint(1, 80)
    return found[:RECORDS]


TOPICS: tuple[Topics, ...] = (sorted_by_topic, clustered)


@cache
def made(topics: Topics, seed: int) -> tuple[Probes, BatchPlan, dict[str, float]]:
    """A corpus in two parts, and the score of each record by its entry."""
    draw = random.Random(f"{topics.__name__} {seed}")
    name = f"{topics.__name__}-{seed}"
    lengths = [max(1, int(draw.lognormvariate(2, 1))) for _ in range(RECORDS)]
    half = RECORDS // 2
    parts = [lengths[:half], lengths[half:]]
    salt = hashlib.sha256(name.encode()).hexdigest()
    manifest = make_manifest(
        corpus(name, parts, 7, reserve=(held := Reserve(share=0.3, salt=salt))), reserve=held
    )
    rows = manifest.train_rows(name)
    plan = one_stream(
        {name: rows},
        steps=2 * STEPS,
        quota=-(-rows // STEPS),
        seed=seed,
        order=RowOrder(block=16, window=64),
        epochs=2,
    )
    entries = [
        entry(hashlib.sha256(f"{name}/{k}/{i}".encode()).digest(), SECRET).hex()
        for k, part in enumerate(parts)
        for i in range(len(part))
    ]
    scores = {
        each: topic + draw.gauss(0, 1) for each, topic in zip(entries, topics(draw), strict=True)
    }
    return Probes(Path("nowhere"), manifest, plan, records_of(manifest)), plan, scores


def p_value(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the two-sided rank-sum test, by the normal law with its correction for steps of one."""
    m, n = len(ours), len(theirs)
    ranks = np.argsort(np.argsort([*ours, *theirs]))[:m] + 1.0
    away = abs(float(ranks.sum()) - m * (m + n + 1) / 2) - 0.5
    return 2 * (1 - NormalDist().cdf(max(0.0, away) / (m * n * (m + n + 1) / 12) ** 0.5))


def found(topics: Topics, step: int, *, newest: bool = False) -> int:
    """In how many corpora the test finds a difference after a step."""
    count = 0
    for seed in range(CORPORA):
        probes, plan, scores = made(topics, seed)
        name = plan.corpora[0]
        chosen = probes.choose(name, step, ROWS)
        ours: Sequence[str] = chosen.trained_records
        theirs = chosen.reserve_records
        if not chosen.tested:  # in so few rows no record is held back
            continue
        if newest:
            rows = newest_rows(plan, name, step, 400)
            records = probes._records
            ours = list(designated(records, name, rows, "train", plan.seed).values())[:ROWS]
            theirs = probes.choose(name, 2 * STEPS, ROWS).reserve_records  # of all places
        sides = [[scores[each] for each in side] for side in (ours, theirs)]
        count += p_value(*sides) <= LEVEL
    return count


@pytest.mark.slow
@each_row(("topics", "step"), [(t, s) for t in TOPICS for s in (4, 12, 30)])
def test_topics_that_lie_together_are_no_effect(topics: Topics, step: int) -> None:
    assert found(topics, step) <= MOST


@pytest.mark.slow
@each_row("topics", TOPICS)
def test_the_newest_rows_would_find_topics(topics: Topics) -> None:
    assert found(topics, 12, newest=True) > MOST
