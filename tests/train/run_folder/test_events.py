"""The event log: whole lines in, whole lines out, whatever a crash left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed
from govray.train.run_folder import events

AT = "2026-11-21T09:30:00Z"
STARTED = events.AttemptStarted(at=AT, attempt=1, world_size=2, step=0)
FAILED = events.Failed(
    at=AT, attempt=1, failure="user", rank=1, step=7, what="ValueError: a bug", decision="restart"
)
STEP = events.Progress(at=AT, step=7, loss=2.5)


def test_events_come_back_in_order(tmp_path: Path) -> None:
    assert events.read(tmp_path) == ()
    for event in (STARTED, FAILED, STEP):
        events.append(tmp_path, event)
    assert events.read(tmp_path) == (STARTED, FAILED, STEP)


@pytest.mark.parametrize("part_bytes", [events.PART_BYTES, 1000])
def test_writers_do_not_tear_each_others_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(events, "PART_BYTES", part_bytes)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: events.append(tmp_path, FAILED), range(64)))
    assert events.read(tmp_path) == (FAILED,) * 64


@given(st.data())
def test_a_log_goes_on_in_parts_whose_last_line_is_passed_over_and_removed_if_it_was_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    steps = [events.Progress(at=AT, step=step, loss=2.5) for step in range(7)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "PART_BYTES", data.draw(st.integers(1, 800)))
        for step in steps:
            events.append(folder, step)
        assert events.read(folder) == (*steps,)
        parts = events._parts(folder)
        assert events.size(folder) == sum(each.stat().st_size for each in folder.iterdir())
        earlier = [each.read_bytes() for each in parts[:-1]]
        whole = parts[-1].read_bytes()
        kept = data.draw(st.integers(0, len(whole)))
        parts[-1].write_bytes(whole[:kept])
        lost = len(steps) - sum(each.count(b"\n") for each in (*earlier, whole[:kept]))
        before = events.read(folder)
        assert before == (*steps[: len(steps) - lost],)
        events.append(folder, STEP)
        assert events.read(folder) == (*before, STEP)
        assert [each.read_bytes() for each in parts[:-1]] == earlier


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b'{"at":"2026-11-21T09:30:00Z","kind":"nonsense"}', "not an event"),
        (b'{"at":"yesterday","kind":"attested"}', "not an event"),
        (b'{"kind":"attested", "at":"2026-11-21T09:30:00Z"}', "canonical"),
        (b'{"at":"2026-11-21T09:30:00Z","kind":"attested","more":1}', "not an event"),
        (b"\xff", "UTF-8"),
        (b"1" * (events.MAX_LINE + 1), "65536"),
    ],
)
def test_a_whole_line_that_is_no_event_is_refused_by_name(
    tmp_path: Path, line: bytes, match: str
) -> None:
    events.append(tmp_path, STARTED)
    with (tmp_path / events.FILE).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(Malformed, match=f"line 2.*{match}"):
        events.read(tmp_path)
