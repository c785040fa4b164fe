"""One driver a run, and no writes by what a dead one left running: on a disk and on a store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from govray.errors import Malformed, Refused, UsageError
from govray.storage.place import Place
from govray.train.run_folder import events, run_lock

HOLD = """
import sys, time
from govray.storage.place import place
from govray.train.run_folder.run_lock import hold
with hold(place(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["disk", "store"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    found: Place = tmp_path if request.param == "disk" else request.getfixturevalue("store")
    return found


def test_a_second_driver_is_refused_and_told_who_has_the_run(
    run: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "_PATIENCE_S", 0.1)
    assert not run_lock.driving(run)
    with run_lock.hold(run) as number:
        assert number == 1
        assert run_lock.driving(run)
        with pytest.raises(UsageError, match=f"process {os.getpid()} on"), run_lock.hold(run):
            pytest.fail("two drivers")
    assert not run_lock.driving(run)
    with run_lock.hold(run) as number:
        assert number == 2
    assert [event.kind for event in events.read(run)] == ["driverStarted"] * 2


def test_the_death_of_a_driver_frees_its_run(run: Place) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert run_lock.driving(run)
        found = run_lock.holder(run)
        assert found is not None
        assert found.here
        assert found.pid == child.pid
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=30)
    assert not run_lock.driving(run)
    with run_lock.hold(run) as number:
        assert number == 2


def test_what_an_earlier_driver_or_attempt_left_may_not_write(run: Place) -> None:
    first = run_lock.begin_attempt(run, run_lock.take_over(run))
    first.check()
    second = run_lock.begin_attempt(run, first.driver)
    second.check()
    with pytest.raises(Refused, match="driver 1, attempt 1; now 1 and 2"):
        first.check()
    number = run_lock.take_over(run)
    with pytest.raises(Refused, match="taken over"):
        second.check()
    with pytest.raises(Refused, match="taken over"):
        run_lock.begin_attempt(run, first.driver)
    run_lock.begin_attempt(run, number).check()
    assert run_lock.last_attempt(run) == 3


@pytest.mark.parametrize("content", [b"[1]", b'{"driver":1}', b"[1,", b'["a","b"]'])
def test_a_fence_that_is_none_lets_nobody_write(tmp_path: Path, content: bytes) -> None:
    fence = run_lock.begin_attempt(tmp_path, run_lock.take_over(tmp_path))
    (tmp_path / run_lock.FENCE).write_bytes(content)
    with pytest.raises(Malformed):
        fence.check()
