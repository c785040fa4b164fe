"""A second Ctrl-C: the driver ends now, and what still runs may no longer write."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from govray.errors import Refused, Stopped
from govray.train.driver import attempts
from govray.train.run_folder import events, run_lock, stop_request
from govray.train.run_folder.requests import STOP
from govray.train.run_folder.stop_request import Patience
from govray.tune import search


class Training:
    """Stands for the trainer: its run goes on until it is told to end."""

    def __init__(self, folder: Path, signals: int, sent: int | None = None) -> None:
        self.interrupted = threading.Event()
        self.ended = False
        self._folder, self._signals, self._sent = folder, signals, sent or signals

    def fit(self) -> str:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        asked = threading.Event()
        while not STOP.made(self._folder):
            asked.wait(0.01)
        if self._signals == 1:
            return "stopped after its step"
        if self._sent > 1:
            signal.pthread_kill(main, signal.SIGINT)
        assert self.interrupted.wait(60)
        self.ended = True
        raise attempts._Interrupted


def test_the_second_signal_ends_the_run_and_shuts_its_workers_out(tmp_path: Path) -> None:
    fence = run_lock.begin_attempt(tmp_path, run_lock.take_over(tmp_path))
    training: Any = Training(tmp_path, signals=2)
    with stop_request.signals() as received, pytest.raises(KeyboardInterrupt):
        attempts._fit(training, tmp_path, received, Patience(None))
    assert training.ended
    with pytest.raises(Refused, match="taken over"):
        fence.check()


def test_a_run_that_does_not_give_way_in_time_ends_without_a_commit(tmp_path: Path) -> None:
    fence = run_lock.begin_attempt(tmp_path, run_lock.take_over(tmp_path))
    training: Any = Training(tmp_path, signals=2, sent=1)
    with (
        stop_request.signals() as received,
        pytest.raises(Stopped, match=r"before it had committed, by .*0.2 s after SIGINT") as error,
    ):
        attempts._fit(training, tmp_path, received, Patience(0.2))
    assert error.value.exit_code == 75  # so the queue lets it come back
    assert training.ended
    with pytest.raises(Refused, match="taken over"):
        fence.check()
    asked, ended = events.read(tmp_path)
    assert asked.text == "stop requested by SIGINT"
    assert ended.text == "killed by preemption_timeout_s, 0.2 s after SIGINT"


def test_so_does_a_search_with_all_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = run_lock.begin_attempt(tmp_path, run_lock.take_over(tmp_path))
    monkeypatch.setattr(search, "_runs", lambda record: [tmp_path])
    monkeypatch.setattr(search, "driving", lambda run: True)
    over = threading.Event()
    stands: Any = SimpleNamespace(look=lambda: None)
    training: Any = Training(tmp_path, signals=2, sent=1)
    training.interrupted = over
    with pytest.raises(Stopped, match=r"before it had committed, by .*0.2 s after SIGINT"):
        search._fit(training, stands, stands, stands, stands, Patience(0.2))
    over.set()
    assert stands.closed
    with pytest.raises(Refused, match="taken over"):
        fence.check()


def test_the_first_leaves_it_its_step(tmp_path: Path) -> None:
    fence = run_lock.begin_attempt(tmp_path, run_lock.take_over(tmp_path))
    training: Any = Training(tmp_path, signals=1)
    with stop_request.signals() as received:
        ended: Any = attempts._fit(training, tmp_path, received, Patience(600))
    assert ended == "stopped after its step"
    assert not training.interrupted.is_set()
    fence.check()


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_controller_ends_its_workers_at_its_next_turn(
    monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    done: list[str] = []

    class Workers:
        def abort(self) -> None:
            done.append("aborted")

    async def turn(_: object) -> None:
        done.append("went on")

    monkeypatch.setattr(attempts.TrainController, "_run_control_loop_iteration", turn)
    controller: Any = object.__new__(attempts._Controller)
    controller._worker_group = Workers()
    controller._interrupted = threading.Event()
    if interrupted:
        controller._interrupted.set()
        with pytest.raises(attempts._Interrupted):
            asyncio.run(controller._run_control_loop_iteration())
    else:
        asyncio.run(controller._run_control_loop_iteration())
    assert done == ["aborted" if interrupted else "went on"]
