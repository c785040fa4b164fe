"""Ask a run to stop: finish the step, commit, and end.

Signals to the driver and ``govray runs stop`` make the same request
(`govray.train.run_folder.requests`). A driver that takes the run removes it.

A second signal ends the driver by the usual `KeyboardInterrupt`. So does a run's own patience
(`Patience`), which is for jobs that give way: nobody is there to send another.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from govray.storage.place import Place
from govray.train.run_folder import events
from govray.train.run_folder.clock import now
from govray.train.run_folder.requests import STOP


class Patience:
    """How long a run may take from the first signal to its end."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def over(self, received: list[str]) -> str | None:
        """Why the run is to end without a commit, if so. ``received``: of `signals`."""
        if not received or self._seconds is None:
            return None
        self._since = time.monotonic() if self._since is None else self._since
        if time.monotonic() - self._since < self._seconds:
            return None
        return f"preemption_timeout_s, {self._seconds:g} s after {received[0]}"


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def request(run_folder: Place, by: str) -> None:
    """Ask the run to stop after its current step. Asking twice is asking once."""
    if STOP.make(run_folder):
        events.append(run_folder, events.StopRequested(at=now(), by=by))


@contextmanager
def signals() -> Iterator[list[str]]:
    """Collect the first SIGINT or SIGTERM by name; the second raises `KeyboardInterrupt`.

    Yields the list, which the main thread checks. A handler that wrote files itself could interrupt
    the function that has them locked. Outside the main thread the list stays empty, because Python
    delivers no signals there.
    """
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
