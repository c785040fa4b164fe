"""What a training loop reports is kept with the run, in groups; nothing it reports ends the run."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from govray.governance.formats import canonical_json
from govray.train.run_folder import events, loop_metrics
from govray.train.run_folder.loop_metrics import MetricLog, grouped

NAMES = st.text("abc/_é", max_size=6)


@given(st.dictionaries(NAMES, st.one_of(st.floats(), st.integers(), st.text(), st.booleans())))
def test_every_report_makes_lines_that_the_log_takes(reported: dict[str, object]) -> None:
    for group, values in grouped(reported, ()).items():
        event = events.Reported(
            at="2026-01-01T00:00:00Z", attempt=0, step=1, group=group, values=values
        )
        assert len(canonical_json.encode(event.to_json())) < events.MAX_LINE


def read(folder: Path) -> list[events.Reported]:
    return [event for event in events.read(folder) if isinstance(event, events.Reported)]


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        np.float32(2),
        np.int64(2),
        np.array(2.0),
        torch.tensor(2),
        torch.tensor(2.0).bfloat16(),
    ],
)
def test_a_scalar_of_any_library_is_a_number(value: object) -> None:
    assert grouped({"m": value}, ()) == {"training": {"m": 2.0}}


def test_each_reported_step_is_kept_in_few_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, writes = [0.0], []
    monkeypatch.setattr(loop_metrics.time, "monotonic", lambda: clock[0])
    append = events.append
    monkeypatch.setattr(
        loop_metrics.events, "append", lambda *args: (writes.append(args), append(*args))
    )
    log = MetricLog(tmp_path, attempt=2)
    for step in range(20):
        log.note(step, {"rows": 4.0, "validation/loss": float(step), "bad": math.nan}, {"rows"})
        clock[0] += loop_metrics.EVERY_S / 4
    log.flush()
    found = read(tmp_path)
    assert [event.step for event in found] == [*range(20)]
    assert all(event.group == "validation" and event.attempt == 2 for event in found)
    assert found[4].text == "step 4 done, validation: loss 4"
    assert len(writes) == 6


@pytest.mark.parametrize("value", [2.0**53, -1e16, 1e20, 1e21, 3.4e38, 10**40])
def test_large_numbers_are_kept(tmp_path: Path, value: float) -> None:
    log = MetricLog(tmp_path, attempt=0)
    log.note(0, {"m": value}, ())
    events.append(tmp_path, events.Progress(at="2026-01-01T00:00:00Z", step=0, loss=value))
    [reported, progress] = events.read(tmp_path)
    assert isinstance(reported, events.Reported)
    assert isinstance(progress, events.Progress)
    assert reported.values == {"m": float(value)}
    assert progress.loss == float(value)


def test_a_long_run_keeps_ends_and_extremes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_metrics, "DENSE", 20)
    log = MetricLog(tmp_path, attempt=0)
    for step in range(2000):
        log.note(step, {"a": 9.0 if step == 1501 else step % 7, "b": -1.0 * (step == 777)}, ())
    log.flush()
    found = read(tmp_path)
    steps = [event.step for event in found]
    assert steps[:20] == [*range(20)]
    assert steps == sorted(set(steps))
    assert len(steps) < 300
    assert {e.step: e.values["a"] for e in found if e.values.get("a", 0) > 6} == {1501: 9.0}
    assert [e.step for e in found if e.values.get("b", 0) < 0] == [777]
    assert steps[-1] > 1990


def test_what_is_left_out_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = MetricLog(tmp_path, attempt=0)
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            log.note(step, {"known": "x", "ok": 1, "training/fine": 2, "odd": math.inf}, {"known"})
    [said] = [each.getMessage() for each in caplog.records]
    assert "not kept with the run: odd." in said


def test_a_folder_that_is_gone_costs_a_point_and_not_the_run(tmp_path: Path) -> None:
    MetricLog(tmp_path / "gone", attempt=0).note(0, {"validation/loss": 1.0}, ())
