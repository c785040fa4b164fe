"""What a training loop reports is kept with the run, in groups; nothing it reports ends the run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.governance.formats import canonical_json
from govray.train.run_folder import events, loop_metrics
from govray.train.run_folder.loop_metrics import MAX_METRICS, MetricLog, grouped

NAMES = st.text("abc/_é", max_size=6)


def test_a_group_is_what_stands_before_the_last_slash() -> None:
    reported = {"loss": 2.0, "accuracy": 0.5, "validation/loss": 3, "held/out/loss": 4.0}
    assert grouped(reported, {"loss"}) == {
        "training": {"accuracy": 0.5},
        "validation": {"loss": 3.0},
        "held/out": {"loss": 4.0},
    }


@given(st.dictionaries(NAMES, st.one_of(st.floats(), st.integers(), st.text(), st.booleans())))
def test_every_report_makes_lines_that_the_log_takes(reported: dict[str, object]) -> None:
    for group, values in grouped(reported, ()).items():
        event = events.Reported(
            at="2026-01-01T00:00:00Z", attempt=0, step=1, group=group, values=values
        )
        assert len(canonical_json.encode(event.to_json())) < events.MAX_LINE


def test_more_metrics_than_a_line_holds_are_left_out() -> None:
    names = {f"{'x' * 120}{i:04}": float(i) for i in range(2 * MAX_METRICS)}
    [values] = grouped(names, ()).values()
    assert len(values) == MAX_METRICS
    event = events.Reported(
        at="2026-01-01T00:00:00Z", attempt=0, step=1, group="training", values=values
    )
    assert len(canonical_json.encode(event.to_json())) < events.MAX_LINE


def test_a_group_is_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(loop_metrics.time, "monotonic", lambda: clock[0])
    log = MetricLog(tmp_path, attempt=2)
    for step in range(20):
        log.note(
            step,
            {"loss": 1.0, "validation/loss": float(step), "bad": math.nan, "huge": 10**400},
            {"loss"},
        )
        clock[0] += loop_metrics.EVERY_S / 4
    found = [event for event in events.read(tmp_path) if isinstance(event, events.Reported)]
    assert [event.step for event in found] == [0, 4, 8, 12, 16]
    assert all(event.group == "validation" and event.attempt == 2 for event in found)
    assert found[1].text == "step 4 done, validation: loss 4"


def test_a_folder_that_is_gone_costs_a_point_and_not_the_run(tmp_path: Path) -> None:
    MetricLog(tmp_path / "gone", attempt=0).note(0, {"validation/loss": 1.0}, ())
