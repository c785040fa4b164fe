"""Goodput is arithmetic, events say what was lost, and the recovery benchmark reports both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import recovery
from benchmarks.goodput import goodput
from benchmarks.intervals import paired_difference
from benchmarks.recovery_runs import Recovered, RunShape, recovered


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


def pretend(shape: RunShape, folder: Path) -> Path:
    """The events of a run of this shape that took no time: 0.1 s a step, 3 s from kill to step."""
    folder.mkdir(parents=True)
    steps = [*range(shape.steps)]
    told: list[dict[str, float | str]] = []
    if shape.kill_at is not None:
        lost_from = shape.kill_at - shape.kill_at % shape.commit_every
        told += [_step(step, 0.1 * step, pid=1) for step in range(shape.kill_at)]
        told.append({"event": "kill", "step": shape.kill_at, "at": 0.1 * shape.kill_at, "pid": 2})
        steps = [*range(lost_from, shape.steps)]
    told += [_step(step, 3.0 + 0.1 * step, pid=3) for step in steps]
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))
    return folder / "events.jsonl"


def _step(step: int, at: float, pid: int) -> dict[str, float | str]:
    return {"event": "step", "step": step, "at": at, "pid": pid, "reporting": 0.01}


@pytest.mark.slow
def test_the_command_prints_a_table_and_one_json_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its runs are pretended: they are Ray's, minutes long, and made for their figures."""
    monkeypatch.setattr(recovery, "start_ray", lambda num_cpus: None)
    monkeypatch.setattr(recovery, "run_governed", lambda deployment, *run: pretend(*run))
    monkeypatch.setattr(recovery, "run_bare", pretend)
    recovery.main(["--quick"])
    *table, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert [*report] == ["recovery", "checkpoint", "goodput"]
    for kind in ("governed", "bare"):
        assert report["recovery"][kind]["lost_steps"] == 1  # killed in step 7, committed at 6
        assert report["recovery"][kind]["step_seconds"] == pytest.approx(0.1)
    assert report["recovery"]["governed_minus_bare"] == pytest.approx(0)
    assert report["recovery"]["pairs"] == 1
    assert report["goodput"]["computed"] is True
    assert all(0 < share < 1 for every, share in report["goodput"].items() if every != "computed")
    assert sum(line.startswith("COMPUTED") for line in table) == 3
