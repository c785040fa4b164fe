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


def test_without_a_step_nothing_is_written_and_none_is_written_twice(tmp_path: Path) -> None:
    with closing(_Journal(tmp_path, lambda *_: None)) as journal:
        pass
    assert steps(tmp_path) == []
    with closing(_Journal(tmp_path, lambda *_: None)) as journal:
        journal(3, {"loss": 1.0})
    assert steps(tmp_path) == [3]


def test_a_step_without_a_loss_is_in_the_log(tmp_path: Path) -> None:
    with closing(_Journal(tmp_path, lambda *_: None)) as journal:
        journal(3, {"targets": 0.0})
    [event] = events.read(tmp_path)
    assert (event.to_json(), event.text) == (
        {"at": event.at, "kind": "progress", "step": 3},
        "step 3 done",
    )
