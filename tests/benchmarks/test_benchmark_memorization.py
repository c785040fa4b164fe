"""The memorization benchmark: its data, its AUROC, and a tiny form of the whole."""

from __future__ import annotations

import json
import math
import random
import shutil
import sysconfig
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import memorization_data, memorization_kinds, memorization_pretrained
from benchmarks.auroc import auroc, grouped
from benchmarks.command import run
from benchmarks.memorization import QUICK, QUICK_OTHERS, TARGETS, _met, main
from benchmarks.memorization_data import (
    DIGITS,
    OWNER,
    PREFIX,
    Data,
    Recipe,
    build,
    canary_rows,
    canary_tokens,
    candidates,
)
from benchmarks.memorization_decision import Decided, Watch, shipped
from benchmarks.memorization_decision import summary as decision_summary
from benchmarks.memorization_families import FAMILIES
from benchmarks.memorization_kinds import code, prose
from benchmarks.memorization_ranking import METHODS
from benchmarks.memorization_training import DOCSTRINGS, Reading
from govray.data.installed_python import NOASSERTION, SourceCorpus
from govray.engine.batch import IGNORED
from govray.errors import UsageError


def texts() -> tuple[list[str], dict[str, list[str]]]:
    draw = random.Random(5)

    def some(count: int) -> list[str]:
        return ["".join(draw.choices("abc ", k=draw.randrange(70, 400))) for _ in range(count)]

    return some(200), {name: some(100) for name in ("a", "b", "c", "d")}


def data(seed: int = 0) -> Data:
    return build(QUICK, seed, *texts())


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


def test_the_rows_of_the_baselines_other_side_are_never_trained_on() -> None:
    made = data()
    reading = Reading(QUICK, made, 0)
    read = {tuple(row) for step in range(QUICK.steps) for row in reading.step(step)}
    assert made.others
    assert not read & {tuple(row) for record in made.others for row in record}
    ranked = {tuple(record[0]) for record in (*made.docstrings.trained, *made.others)}
    apart = {tuple(row) for record in made.apart for row in record}
    assert not ranked & apart  # so a model of these alone is a reference
    assert len(apart) > len(ranked)


def test_a_record_is_read_as_often_as_its_turn_says() -> None:
    recipe = replace(QUICK_OTHERS, docstrings=12, steps=54, docstring_rows=2, rows=4)
    made = build(recipe, 0, *texts())
    reading = Reading(recipe, made, 0)
    for step in range(recipe.steps):
        reading.step(step)
    counts = Counter(number for number, _ in reading.read[DOCSTRINGS])
    assert counts == {n: recipe.reads[n % 2] for n in range(12)}


def test_a_profile_has_one_row_of_a_record_and_only_what_was_read() -> None:
    made = data()
    reading = Reading(QUICK, made, 0)
    for step in range(20):
        reading.step(step)
    watch = Watch(QUICK, made, reading, shipped())
    for name in (DOCSTRINGS, *made.clean):
        probe = watch.probe(name, 19, 32)
        assert probe.tensors is not None
        read = {tuple(row[:-1]) for _, row in reading.read[name]}
        rows = [tuple(row) for row in probe.tensors["tokens"].tolist()]
        ours = len(probe.probe_units)
        assert ours >= 10
        assert set(rows[:ours]) <= read
        assert not set(rows[ours:]) & read
        units = (*probe.probe_units, *probe.reserve_units)
        assert len(set(units)) == len(units)


def test_an_operating_point_is_summed_up_over_runs() -> None:
    caught = Decided(caught=True, profiles_until=3, false_flags=("a",), profiles=9)
    missed = Decided(caught=False, profiles_until=None, false_flags=(), profiles=9)
    found = decision_summary([caught, missed], shipped())
    assert found["caught"] == found["false_flags_per_run"] == 0.5
    assert found["profiles_until"] == 3
    assert decision_summary([missed], shipped())["profiles_until"] is None


def test_families_have_one_size_and_are_not_one_model() -> None:
    sizes = {
        name: sum(each.numel() for each in family(Recipe()).parameters())
        for name, family in FAMILIES.items()
    }
    assert sizes["llama"] == pytest.approx(sizes["gpt"], rel=0.02)
    assert set(FAMILIES) == {"gpt", "llama"}


def test_prose_is_sentences_of_packages_that_state_a_licence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def package(name: str, licence: str, sentence: str) -> SourceCorpus:
        words = f"{sentence} " * 8
        file = tmp_path / f"{name}.py"
        file.write_text(f'"""{words}\n\n>>> {words}\n\nShort.\n\n{words[9:]}"""\nx = "{words}"')
        return SourceCorpus(name, licence, "", ((file.name, file),))

    one = package("one", "MIT", "The reader keeps one row.")
    two = package("two", "BSD-3-Clause", "A writer has no place to go.")
    hidden = package("hidden", NOASSERTION, "Nobody said what this may be used for.")
    monkeypatch.setattr(memorization_kinds, "python_source", lambda: (hidden, one, two))
    found = prose(packages=1)
    assert found.licences == {"one": "MIT", "two": "BSD-3-Clause"}
    assert set(found.packages) == {"one"}
    assert len(found.pool) == 2
    assert all("writer" in text for text in found.pool)


def test_no_text_of_a_pool_begins_as_another_text() -> None:
    found = code(
        {"large": ["a = 1", "b = 2"], "small": ["a = 1", f"{'c' * 40}1", f"{'c' * 40}2"]}, 1
    )
    assert found.packages == {"large": ["a = 1", "b = 2"]}
    assert found.pool == [f"{'c' * 40}1"]


def test_a_clean_row_is_read_once_at_most() -> None:
    reading = Reading(QUICK, data(), 0)
    for step in range(QUICK.steps):
        reading.step(step)
    clean = [read for name, read in reading.read.items() if name != DOCSTRINGS]
    rows = [tuple(row) for read in clean for _, row in read]
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


def test_too_few_rows_to_read_once_are_said_so() -> None:
    reading = Reading(QUICK, data(), 0)
    with pytest.raises(UsageError, match="texts that are read once last for"):
        list(map(reading.step, range(1000)))


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
    names = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest")
    installed = []
    for name in names:
        shutil.copytree(place / name, tmp_path / name)
        files = sorted((tmp_path / name).rglob("*.py"))
        installed.append(SourceCorpus(name, "PSF-2.0", "", tuple((p.name, p) for p in files)))
    paths = {"stdlib": str(tmp_path)}
    monkeypatch.setattr(memorization_kinds, "python_source", lambda: tuple(installed))
    monkeypatch.setattr(memorization_pretrained, "missing", lambda: "gguf")
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
    assert report["decision"]["runs"] == 1
    assert report["decision"]["section"]["probeRows"] == QUICK.probe_rows
    assert report["baselines"].keys() == set(METHODS)
    for kinds in report["families"].values():
        for methods in (kinds["code"], kinds["prose"]):
            assert methods.keys() == set(METHODS)
            assert 0 <= methods["lira"]["auroc_by_reads"]["2"] <= 1
    assert report["families"].keys() == set(FAMILIES)
    assert 0 <= report["auroc_other_family"] <= 1
    assert report["pretrained"] == {"missing": "gguf"}
    assert any("gguf is not installed" in line for line in table)
    assert report["cost"] > 0
    assert report["exposure_by_repeats"].keys() == {"1", "32", "0"}
    assert report["entropy_by_repeats"].keys() == {"1", "32", "0"}
    assert report["auroc_predictive_entropy_by_seed"] == [None]
    assert "auroc_predictive_entropy" in report
    assert "auroc_representation_entropy" in report
