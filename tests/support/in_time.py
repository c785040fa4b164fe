"""A bound on the seconds of a block, also where it waits in the system: POSIX alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Late(Exception):
    """No ``TimeoutError``: that is an ``OSError``, which readers of storage pass over."""


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Raises `Late` in the main thread if the block takes longer."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
