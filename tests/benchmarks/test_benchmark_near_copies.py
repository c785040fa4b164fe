"""The benchmark of near copies runs, and its last line says what it measured."""

from __future__ import annotations

import json

import pytest

from benchmarks import near_copies
from benchmarks.command import run
from benchmarks.copied_records import KINDS, questions, records


@pytest.mark.slow
def test_it_prints_a_table_and_one_json_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_copies, "_phase", near_copies.measured)  # no process for each
    words = ["--records", "2000", "--questions", "80", "--no-ray"]
    assert run(lambda: near_copies.main(words)) == 0
    *table, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    made = report["one process"]
    assert made["passages"] >= 2000
    assert 772 < made["bytes_per_passage"] < 790
    for phase in ("look_up_warm", "look_up_cold", "ask_all", "scan_all"):
        assert 0 < report[phase]["p50_ms"] <= report[phase]["p99_ms"]
    assert report["look_up_warm"]["candidates"] == report["look_up_cold"]["candidates"]
    compared = report["compare_all"]
    assert compared["precision"] == 1.0
    assert compared["recall"]["jaccard .8 to 1"] == 1.0
    assert compared["recall"]["jaccard .5 to .8"] > 0.8
    assert sum(compared["pairs"]["0% replaced"].values()) >= 10
    assert sum(compared["pairs"]["absent"].values()) == 0, "the control"
    assert "a passage" in "".join(table)


def test_records_and_questions_follow_from_the_seed() -> None:
    one, other = (dict(records(300, seed)) for seed in (1, 2))
    assert one == dict(records(300, 1))
    assert not {*one.values()} & {*other.values()}
    asked = [*questions(300, 16, 1)]
    assert [each.kind for each in asked] == [*KINDS, *KINDS]
    assert asked[0].text in one.values()
    assert asked[7].text not in one.values()
