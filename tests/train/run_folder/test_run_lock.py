"""One driver a run, and no writes by what a dead one left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from govray.errors import Malformed, Refused, UsageError
from govray.train.run_folder import events, run_lock

HOLD = """
import pathlib, sys, time
from govray.train.run_folder.run_lock import hold
with hold(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_driver_is_refused_and_told_who_has_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "_PATIENCE_S", 0.1)
    assert not run_lock.driving(tmp_path)
    with run_lock.hold(tmp_path) as number:
        assert number == 1
        assert run_lock.driving(tmp_path)
        with (
            pytest.raises(UsageError, match=f"process {os.getpid()} on"),
            run_lock.hold(tmp_path),
        ):
            pytest.fail("two drivers")
    assert not run_lock.driving(tmp_path)
    with run_lock.hold(tmp_path) as number:
        assert number == 2
    assert [event.kind for event in events.read(tmp_path)] == ["driverStarted"] * 2


def test_the_death_of_a_driver_frees_its_run(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert run_lock.driving(tmp_path)
        found = run_lock.holder(tmp_path)
        assert found is not None
        assert found.here
        assert found.pid == child.pid
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=30)
    assert not run_lock.driving(tmp_path)


def test_what_an_earlier_driver_or_attempt_left_may_not_write(tmp_path: Path) -> None:
    first = run_lock.begin_attempt(tmp_path, run_lock.take_over(tmp_path))
    first.check()
    second = run_lock.begin_attempt(tmp_path, first.driver)
    second.check()
    with pytest.raises(Refused, match="driver 1, attempt 1; now 1 and 2"):
        first.check()
    number = run_lock.take_over(tmp_path)
    with pytest.raises(Refused, match="taken over"):
        second.check()
    with pytest.raises(Refused, match="taken over"):
        run_lock.begin_attempt(tmp_path, first.driver)
    run_lock.begin_attempt(tmp_path, number).check()
    assert run_lock.last_attempt(tmp_path) == 3


@pytest.mark.parametrize("content", [b"[1]", b'{"driver":1}', b"[1,", b'["a","b"]'])
def test_a_fence_that_is_none_lets_nobody_write(tmp_path: Path, content: bytes) -> None:
    fence = run_lock.begin_attempt(tmp_path, run_lock.take_over(tmp_path))
    (tmp_path / run_lock.FENCE).write_bytes(content)
    with pytest.raises(Malformed):
        fence.check()
