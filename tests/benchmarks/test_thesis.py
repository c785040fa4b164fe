"""The thesis benchmark runs each arm once, and what it compares arms by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.research import thesis
from benchmarks.research.arms import ARMS, first_of_alike
from benchmarks.research.texts import STDLIB, library


@pytest.mark.story
def test_each_arm_runs_once_and_is_not_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thesis, "library", lambda: library(STDLIB / "asyncio"))
    thesis._library.cache_clear()
    before = torch.get_num_threads()
    words = ["--size", "quick", "--seeds", "1", "--results", str(tmp_path)]
    try:
        thesis.main(words)
        ran = capfd.readouterr()
        thesis.main(words)
    finally:
        torch.set_num_threads(before)
        thesis._library.cache_clear()
    again = capfd.readouterr()
    report = json.loads(ran.out.splitlines()[-1])
    assert report == json.loads(again.out.splitlines()[-1])
    assert again.err == ""
    shown = {each["arm"] for each in report["points"].values()}
    missing = {"dp_sgd"} - shown  # where Opacus is not installed
    assert shown == (ARMS.keys() - {"adapter"} - missing) | {"adapter_kept", "adapter_removed"}
    assert report["missing"] == len(missing)
    assert (tmp_path / "quick" / "pareto.svg").read_text().count("<title>") == 1 + len(shown)


def test_a_changed_size_or_point_is_another_result(tmp_path: Path) -> None:
    piece = thesis.Piece(tmp_path, thesis.QUICK, "plain", 2e-3, 1)
    assert piece.file == thesis.Piece(tmp_path, thesis.QUICK, "plain", 2e-3, 1).file
    assert piece.file != thesis.Piece(tmp_path, thesis.SIZES["long"], "plain", 2e-3, 1).file


def test_exact_copies_go_at_likeness_1_and_near_ones_below() -> None:
    row, near, other = list(range(40)), [*range(36), 90, 91, 92, 93], list(range(100, 140))
    assert first_of_alike([row, near, row, other], 1.0) == [row, near, other]
    assert first_of_alike([row, near, row, other], 0.7) == [row, other]


def test_a_point_beats_another_only_if_neither_figure_is_worse() -> None:
    def point(exposure: float, loss: float) -> dict[str, Any]:
        return {"exposure": [exposure], "loss": {"domain": [loss]}}

    assert thesis._beats(point(1, 2), point(2, 2))
    assert not thesis._beats(point(1, 2), point(1, 2))
    assert not thesis._beats(point(1, 3), point(2, 2))
