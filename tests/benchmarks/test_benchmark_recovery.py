"""Goodput is arithmetic, events say what was lost, and the recovery benchmark runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.goodput import goodput
from benchmarks.intervals import paired_difference
from benchmarks.recovery_runs import Recovered, recovered

ROOT = Path(__file__).parents[2]


def test_goodput_counts_commits_repeated_steps_and_recovery() -> None:
    parts = {"step_seconds": 2.0, "failure_every": 100, "commit_every": 11}
    # 200 s of steps, 5 of them done twice, 10 s to recover, 100 / 11 commits of 1.1 s.
    found = goodput(**parts, recovery_seconds=10.0, commit_seconds=1.1)
    assert found == pytest.approx(200 / (200 + 10 + 10 + 10))
    assert goodput(**{**parts, "commit_every": 1}, recovery_seconds=0, commit_seconds=0) == 1.0
    assert goodput(**parts, recovery_seconds=11.0, commit_seconds=1.1) < found


def test_a_paired_difference_has_an_interval_around_its_median() -> None:
    found = paired_difference([3.0, 4.0, 8.0], [1.0, 1.0, 1.0])
    assert found.median == 3.0
    assert found.interval[0] <= found.median <= found.interval[1]
    assert found.pairs == 3


def test_events_say_how_long_recovery_took_and_what_was_lost(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    told = [{"event": "step", "step": step, "at": float(step), "pid": 1} for step in range(5)]
    told.append({"event": "kill", "step": 5, "at": 3.9, "pid": 2})
    told += [{"event": "step", "step": step, "at": 8.0 + step, "pid": 3} for step in range(3, 7)]
    events.write_text("".join(json.dumps(each) + "\n" for each in told))
    assert recovered(events) == Recovered(recovery=pytest.approx(7.1), lost=2, step=1.0)


@pytest.mark.slow
def test_recovery_prints_a_table_and_one_json_line() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.recovery", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert ran.returncode == 0, ran.stderr
    *table, last = ran.stdout.splitlines()
    report = json.loads(last)
    assert [*report] == ["recovery", "checkpoint", "goodput"]
    for kind in ("governed", "bare"):
        assert report["recovery"][kind]["seconds"] > 0
        assert report["recovery"][kind]["step_seconds"] > 0
        # Killed in step 7, with commits every 3 steps; the newest may not have been done yet.
        assert report["recovery"][kind]["lost_steps"] in (1, 4, 7)
    assert report["recovery"]["pairs"] == 1
    assert report["goodput"]["computed"] is True
    assert all(0 < share < 1 for every, share in report["goodput"].items() if every != "computed")
    assert sum(line.startswith("COMPUTED") for line in table) == 3
    assert "Traceback" not in ran.stderr
