"""The memorization benchmark: its data, its AUROC, and a tiny form of the whole."""

from __future__ import annotations

import json
import math
import random
import shutil
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import memorization_data
from benchmarks.auroc import auroc, grouped
from benchmarks.command import run
from benchmarks.memorization import QUICK, TARGETS, _met, main
from benchmarks.memorization_data import (
    DIGITS,
    OWNER,
    PREFIX,
    Data,
    build,
    canary_rows,
    canary_tokens,
    candidates,
)
from benchmarks.memorization_run import Reading
from govray.engine.batch import IGNORED
from govray.errors import UsageError


def data(seed: int = 0) -> Data:
    draw = random.Random(5)

    def texts(count: int) -> list[str]:
        return ["".join(draw.choices("abc ", k=draw.randrange(70, 400))) for _ in range(count)]

    return build(QUICK, seed, texts(200), {name: texts(100) for name in ("a", "b", "c", "d")})


def test_auroc_of_known_orders() -> None:
    scores = torch.tensor([3.0, 2.0, 1.0, 0.0])
    assert auroc(scores, [True, True, False, False]) == 1
    assert auroc(scores, [False, False, True, True]) == 0
    assert auroc(scores, [True, False, False, True]) == 0.5
    assert auroc(torch.zeros(4), [True, False, True, False]) == 0.5
    assert auroc(scores, [True] * 4) is None
    assert auroc(scores, [False] * 4) is None


def test_groups_are_means_of_distinct_items() -> None:
    found = grouped(torch.arange(4.0), 4, 3, torch.Generator().manual_seed(0))
    assert found.tolist() == [1.5] * 3
    spread = grouped(torch.randn(4000), 16, 500, torch.Generator().manual_seed(0)).std()
    assert float(spread) == pytest.approx(0.25, rel=0.15)


def test_a_seed_gives_its_data_and_another_gives_other_data() -> None:
    assert data(1) == data(1)
    assert data(1) != data(2)


def test_reserves_and_held_out_canaries_are_never_trained_on() -> None:
    made = data()
    reading = Reading(QUICK, made, 0)
    read = {tuple(row) for step in range(QUICK.steps) for row in reading.step(step)}
    for corpus in (made.docstrings, *made.clean.values()):
        assert not read & {tuple(row) for record in corpus.reserve for row in record}
    held = {tuple(canary_tokens(each)) for each in made.held_out}
    size = len(PREFIX) + OWNER + DIGITS + 2
    planted = {tuple(canary_tokens(each)) for each in made.planted}
    heads = [row[:size] for row in read]
    assert not held & set(heads)
    assert planted & set(heads)  # the control


def test_each_canary_is_planted_as_often_as_it_says() -> None:
    made = data()
    heads = [bytes(row[1 : len(PREFIX) + OWNER + DIGITS + 1]).decode() for row in made.canary_rows]
    assert {each: heads.count(PREFIX + each) for each in made.planted} == made.planted
    assert sorted(made.planted.values()) == sorted(QUICK.repeats * QUICK.canaries)
    others = [each for each in heads if each.removeprefix(PREFIX) not in made.planted]
    assert len(others) == len(set(others)) == QUICK.once


def test_no_two_accounts_have_an_owner_in_common() -> None:
    made = data()
    heads = {bytes(row[1 : len(PREFIX) + OWNER + DIGITS + 1]).decode() for row in made.canary_rows}
    read = {each.removeprefix(PREFIX) for each in heads}
    assert not read & set(made.held_out)
    texts = [*read, *made.held_out]
    assert len({each[:OWNER] for each in texts}) == len(texts)


def test_a_clean_row_is_read_once_at_most() -> None:
    reading = Reading(QUICK, data(), 0)
    for step in range(QUICK.steps):
        reading.step(step)
    rows = [tuple(row) for read in reading.read.values() for _, row in read]
    assert len(rows) == len(set(rows)) > 0


def test_loss_targets_of_a_canary_row_are_its_digits() -> None:
    rows = canary_rows(["abc:01234567"])
    counted = rows["targets"][rows["targets"] != IGNORED]
    assert bytes(counted.tolist()) == b"01234567"
    assert bytes(rows["tokens"][0, 1:].tolist()).decode() == PREFIX + "abc:01234567"
    others = candidates("abc:01234567", 50, 0)
    assert len({*others, "abc:01234567"}) == 51
    assert all(each.startswith("abc:") for each in others)


def test_too_small_a_library_is_said_so() -> None:
    with pytest.raises(UsageError, match="too few"):
        build(replace(QUICK, clean=9), 0, ["a" * 100] * 200, {})


def test_targets_say_missed_where_nothing_was_measured() -> None:
    assert _met(0.96, *TARGETS["auroc_composite"])
    assert not _met(0.94, *TARGETS["auroc_composite"])
    assert not _met(0.02, *TARGETS["cost"])
    assert not _met(None, *TARGETS["cost"])
    assert not _met(math.nan, *TARGETS["cost"])


@pytest.fixture
def small_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some packages of the standard library in the place of all, whose reading takes longest."""
    place = Path(sysconfig.get_path("stdlib"))
    for name in ("asyncio", "email", "logging", "unittest"):
        shutil.copytree(place / name, tmp_path / name)
    paths = {"stdlib": str(tmp_path)}
    monkeypatch.setattr(memorization_data.sysconfig, "get_path", paths.__getitem__)


@pytest.mark.slow
@pytest.mark.usefixtures("small_library")
def test_the_command_prints_a_table_and_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert run(lambda: main(["--quick", "--seeds", "1"])) == 0
    finally:
        torch.set_num_threads(threads)
    *table, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    # Forty steps of a tiny model memorize nothing, and the report says so.
    assert report["auroc_composite"] is None
    assert not report["met"]["auroc_composite"]
    assert any("auroc_composite" in line and "MISSED" in line for line in table)
    assert 0 <= report["auroc_natural_16"] <= 1
    assert 0 <= report["false_flag_rate"] <= 1
    assert report["cost"] > 0
    assert report["exposure_by_repeats"].keys() == {"1", "32", "0"}
    assert report["entropy_by_repeats"].keys() == {"1", "32", "0"}
    assert report["auroc_predictive_entropy_by_seed"] == [None]
    assert "auroc_predictive_entropy" in report
    assert "auroc_representation_entropy" in report
