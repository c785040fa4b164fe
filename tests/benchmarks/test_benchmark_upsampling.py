"""The upsampling benchmark: its data and arithmetic, and a small search without its defence."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks import upsampling
from benchmarks.memorization_data import Row, canary_tokens
from benchmarks.search_curves import Curves
from benchmarks.search_race import ToTheEnd, last_reports
from benchmarks.upsampling import QUICK, TARGETS, Winner, summary, table, winners
from benchmarks.upsampling_trials import RATE, UPSAMPLING, WIDTH, Recipe, build, curve
from govray.errors import CouldNotCheck, UsageError

POINT = {RATE: 3e-3, WIDTH: 4, UPSAMPLING: 4}
WORDS = ["the", "of", "a", "row", "gives", "no", "error", "that", "returns", "each", "and", "as"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the command has it: models this small are slower on two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def docstrings(count: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=60)) for _ in range(count)]


def test_no_part_of_the_data_has_rows_of_another() -> None:
    data = build(QUICK, 3, docstrings(300))
    parts: list[list[Row]] = [
        list(data.public),
        list(data.restricted.values()),
        list(data.held_back.values()),
        list(data.validation[:4]),
        list(data.test),
    ]
    rows = [tuple(row) for part in parts for row in part]
    assert len(set(rows)) == len(rows)
    assert not set(data.restricted) & set(data.held_back)
    for canary, row in (data.restricted | data.held_back).items():
        assert row[: len(canary_tokens(canary))] == canary_tokens(canary)
        assert len(row) == QUICK.context + 1
    for near in data.validation[4:]:
        apart = [sum(a != b for a, b in zip(near, row, strict=True)) for row in parts[1]]
        assert min(apart) <= 10
    assert build(QUICK, 3, docstrings(300)) == data
    assert build(QUICK, 4, docstrings(300)) != data
    with pytest.raises(UsageError, match="too few"):
        build(Recipe(), 3, docstrings(300))


@pytest.mark.parametrize("repeats", [1, 4])
def test_a_whole_trial_reads_each_restricted_row_as_often_as_its_point_says(repeats: int) -> None:
    data = build(QUICK, 0, docstrings(300))
    trial = curve(QUICK, data, POINT | {UPSAMPLING: repeats}, 0)
    read = Counter(tuple(row) for _ in range(QUICK.steps) for row in trial.next_rows())
    assert {read[tuple(row)] for row in data.restricted.values()} == {repeats}
    assert read.total() == QUICK.steps * QUICK.rows
    unread = [*data.held_back.values(), *data.validation, *data.test]
    assert not any(read[tuple(row)] for row in unread)


def test_a_model_trained_again_is_the_one_that_was_measured() -> None:
    data = build(QUICK, 0, docstrings(300))
    curves = Curves(partial(curve, QUICK, data, seed=0))
    there = curves.report(POINT, 6, math.inf)
    measured = [each.clone() for each in curves.model(POINT, 6).parameters()]
    curves.report(POINT, 12, math.inf)  # it goes further, and is trained again for step 6
    again = [*curves.model(POINT, 6).parameters()]
    assert all(torch.equal(a, b) for a, b in zip(measured, again, strict=True))
    further = [*curves.model(POINT, 12).parameters()]
    assert not all(torch.equal(a, b) for a, b in zip(measured, further, strict=True))
    assert there.v == 0
    assert curves.report(POINT, 6, -10.0).v > 0
    assert curves.report(POINT, 6, -10.0).loss == there.loss


def test_each_trial_s_last_report_counts_within_the_budget() -> None:
    curves = Curves(partial(curve, QUICK, build(QUICK, 0, docstrings(300)), seed=0))
    found = last_reports(
        ToTheEnd(3, 9),
        lambda number: POINT | {UPSAMPLING: 1 + number},
        partial(curves.report, tau=math.inf),
        workers=1,
        reports=(3, 6, 9),
        budget=15,
    )
    assert {name: each.step for name, each in found.items()} == {"0": 9, "1": 6}


def won(exposure: float, test: float) -> Winner:
    return Winner(
        upsampling=1, rate=1e-3, width=8, steps=9, loss=2.0, memorization=0.1,
        exposure=exposure, never_read=1.4, test=test, searched=90,
    )  # fmt: skip


def test_a_target_that_one_seed_misses_is_missed() -> None:
    good = {"plain": won(12.0, 2.0), "governed": won(1.5, 2.0)}
    bad = {"plain": won(12.0, 2.0), "governed": won(3.0, 2.2)}
    found = summary([{"stopping": good, "promotion": good}, {"stopping": good, "promotion": bad}])
    assert [found["forms"]["stopping"][name]["met"] for name in TARGETS] == [True] * 3
    assert [found["forms"]["promotion"][name]["met"] for name in TARGETS] == [True, False, False]
    assert found["forms"]["promotion"]["governed_exposure"]["mean"] == 2.25
    shown = table(found | {"seeds": [5, 6]})
    assert shown.count("MISSED") == 2
    assert shown.count(": met") == 4


@pytest.mark.slow
def test_the_command_prints_a_table_and_one_json_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upsampling, "library", lambda: (docstrings(300), {}))
    monkeypatch.setattr(upsampling, "DEVELOPMENT", (1,))
    upsampling.main(["--quick", "--seeds", "1"])
    *_, last = capsys.readouterr().out.splitlines()
    upsampling.main(["--quick", "--calibrate"])
    [calibrated] = capsys.readouterr().out.splitlines()
    told = json.loads(last)
    assert set(told["forms"]) == {"stopping", "promotion"}
    for figures in told["forms"].values():
        assert set(TARGETS) < set(figures)
    assert told["canaries"] == QUICK.canaries
    assert json.loads(calibrated)["measures"] == 18


SMALL = Recipe(
    steps=243,
    every=27,
    rows=8,
    canaries=16,
    upsampling=(1, 2, 64),
    validation=32,
    near_duplicates=16,
    test=64,
    widths=(48,),
    rates=(4e-3, 1e-2),
    candidates=100,
    full_trials=3,
)


@pytest.mark.slow
def test_the_limit_and_nothing_else_keeps_the_memorizer_from_winning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the limit off, the negative control, the governed search picks the memorizer too."""
    data = build(SMALL, 1, docstrings(1000))
    curves = Curves(partial(curve, SMALL, data, seed=1))  # no limit moves them: trained once
    monkeypatch.setattr(upsampling, "Curves", lambda _: curves)
    governed = winners(SMALL, data, 1, 2.0)  # so few rows differ by more than TAU by chance
    off = winners(SMALL, data, 1, math.inf)
    for form, found in governed.items():
        assert found["plain"].upsampling == 64
        assert found["governed"].upsampling < 64
        assert found["plain"].loss < found["governed"].loss
        assert found["governed"].exposure < 4
        assert off[form]["governed"] == off[form]["plain"] == found["plain"]
        assert found["plain"].exposure > 10


def test_a_search_without_a_trial_within_its_limit_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upsampling, "mean_exposure", lambda *_: 0.0)  # of the plain one's
    data = build(QUICK, 0, docstrings(300))
    with pytest.raises(CouldNotCheck, match="no trial within the limit"):
        winners(replace(QUICK, full_trials=1), data, 0, -1e9)
