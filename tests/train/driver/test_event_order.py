"""The event log has the last step, however soon after the one before it comes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from govray.train.driver.attempts import _Journal
from govray.train.run_folder import events


def steps(folder: Path) -> list[int]:
    return [each.step for each in events.read(folder) if isinstance(each, events.Progress)]


def test_the_last_step_is_in_the_log_and_the_others_now_and_then(tmp_path: Path) -> None:
    heard: list[int] = []
    with closing(_Journal(tmp_path, lambda step, _: heard.append(step))) as journal:
        for step in range(500):
            journal(step, {"loss": 1.0})
        assert steps(tmp_path) == [0]  # what was missing: the rest of the curve
    assert steps(tmp_path) == [0, 499]
    assert heard == list(range(500))
