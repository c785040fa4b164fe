"""A search's record: what is written comes back, whatever a crash cut off."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from govray.train.run_folder.clock import instant
from govray.tune.search_config import parse_search
from govray.tune.search_record import TRIALS, SearchRecord, read
from tests.support.search_files import FILE


def begin(folder: Path, **search: Any) -> SearchRecord:
    value = FILE | {
        "search": FILE["search"] | search,
        "optimizer": {"clip_norm": None},
        "hyperparameters": {"context": 32, "width": 16, "anything": None},
    }
    record = SearchRecord(folder=folder, file=parse_search(value, where="here"), started=instant())
    record.write()
    return record


@pytest.mark.parametrize("tau", [0.5, math.inf])
def test_a_record_comes_back(tmp_path: Path, tau: float) -> None:
    limit = FILE["search"]["memorization"] | {"tau": tau}
    made = begin(tmp_path, memorization=limit)
    one = made.drawn({"optimizer.lr": 0.25, "hyperparameters.width": 32})
    two = made.drawn({"optimizer.lr": 0.5, "hyperparameters.width": 16})
    made.ended(one.name, "stopped", "place 2 of 2")
    made.ended(one.name, "failed", "too late: it ended already")
    made.cloned(two.name, f"{two.name}.1", one.name, {"optimizer.lr": 0.75})
    found = read(tmp_path)
    assert (found.file, found.started) == (made.file, made.started)
    assert list(found.trials.values()) == [
        replace(one, how="stopped", reason="place 2 of 2"),
        replace(two, run=f"{two.name}.1", values={"optimizer.lr": 0.75}),
    ]
    assert not found.concluded
    found.conclude()
    assert read(tmp_path).concluded


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_that_a_crash_cut_off_is_overwritten(tmp_path: Path, cut: int) -> None:
    made = begin(tmp_path)
    made.drawn({"optimizer.lr": 0.25})
    made.drawn({"optimizer.lr": 0.5})
    path = tmp_path / TRIALS
    path.write_bytes(path.read_bytes()[:-cut])
    found = read(tmp_path)
    [first] = found.trials
    assert first.startswith("trial-0000-")
    again = found.drawn({"optimizer.lr": 0.75})
    assert read(tmp_path).trials == found.trials
    assert again.name == first.replace("0000", "0001", 1)
