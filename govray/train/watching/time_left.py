"""How long a run still takes, from the steps that were seen."""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_S = 5.0
"""Seconds of steps that an estimate rests on, at least."""


class TimeLeft:
    """The seconds to a run's last step, at the speed so far.

    The first step that is seen only starts the clock: starting workers and first passes say nothing
    about the rest.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None

    def after(self, done: int, total: int) -> float | None:
        """Seconds that the steps from ``done`` to ``total`` take; None while nobody can say."""
        at = self._clock()
        if self._first is None or done < self._first[0]:  # it was rolled back
            self._first = done, at
            return None
        begun, since = self._first
        if done == begun or at - since < LEAST_S:
            return None
        return (total - done) * (at - since) / (done - begun)


def hours(seconds: float) -> str:
    """For people: ``50 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
