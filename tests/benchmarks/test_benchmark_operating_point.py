"""The benchmark of operating points: each corpus is measured by the rows that it stands for."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.memorization import QUICK_OTHERS
from benchmarks.memorization_data import build
from benchmarks.memorization_decision import shipped
from benchmarks.operating_point import Observed, observe, points, report
from govray.engine.memorization.operating_curve import Point

RECIPE = replace(QUICK_OTHERS, docstrings=40, steps=20, every=10, clean=2)
SECTION = shipped().model_copy(
    update={"every": 10, "probe_rows": 8, "turns": 1, "row_scores": True, "actions": {}}
)


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=5)) for _ in range(50)]
    return [" ".join(draw.choices(words, k=30)) for _ in range(count)]


@pytest.fixture(scope="module")
def observed() -> Observed:
    sources = {f"package{n}": texts(120, n) for n in range(2)}
    return observe(RECIPE, build(RECIPE, 17, texts(200, 99), sources), 17, SECTION)


def test_every_corpus_is_measured_by_as_many_rows(observed: Observed) -> None:
    last = observed.profiles[-1]
    assert last.corpora == {*observed.clean, *observed.repeated}
    assert "read-2" in observed.repeated
    assert {m.probe.rows for c in observed.repeated for m in last.of(c)} == {8}
    assert all(m.scores is not None for m in last.measures)


def test_a_share_of_one_is_the_corpus_that_is_read_most(observed: Observed) -> None:
    last = observed.profiles[-1]
    most = f"read-{max(RECIPE.reads)}"
    ours, theirs = ([m.probe for m in last.of(name)] for name in ("share-1", most))
    assert ours == theirs
    assert [m.probe for m in last.of("share-0.125")] != ours


def test_the_report_counts_what_the_curves_say(observed: Observed) -> None:
    found = points([observed], SECTION, RECIPE.steps, [0.0, 1.0])
    told = report(found, 1.0)
    assert told["points"].keys() == {"0", "1"}
    assert told["points"]["1"]["clean"] == len(observed.clean)
    assert told["points"]["1"]["corpora"]["read-2"]["runs"] == 1

    def point(flags: int, **until: tuple[int | None, ...]) -> Point:
        named = {name.replace("_", "-", 1).replace("_", "."): each for name, each in until.items()}
        return Point(half_width=1.0, false_flags=flags, clean=4, runs=2, until=named)

    made = {
        "read-32": [point(1, read_32=(3, None))],
        "share-0.5": [point(2, share_0_5=(4, 6))],
        "share-1": [point(0, share_1=(1, 1))],
        "share-0.125": [point(0, share_0_125=(1, None))],
        "share-0.25": [point(0, share_0_25=(None, None))],
    }
    told = report(made, 1.0)
    assert told["smallest_share"] == {"1": 0.5}
    assert told["points"]["1"]["false_flags"] == 2
    assert told["points"]["1"]["corpora"]["share-0.5"] == {
        "caught": 2,
        "runs": 2,
        "profiles_until": 5,
    }
