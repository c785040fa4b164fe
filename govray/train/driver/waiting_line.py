"""What a run or a search says while workers wait for room: at first, and again if it goes on."""

from __future__ import annotations

FIRST_S = 5.0
"""How long one waits before anything is said: every trial waits for a moment."""

AGAIN_S = 600.0
"""After how long it is said again, and then after twice as long each time."""

GAP_S = 15.0
"""How long nobody may be seen waiting before the wait has ended. Ray asks anew now and then, and
for a moment there is no request."""


class WaitingLine:
    """See the module."""

    def __init__(self, need: str, who: str = "trial") -> None:
        self._need = need
        self._one = who
        self._since: float | None = None
        self._seen = 0.0
        self._due = FIRST_S

    def look(self, waiting: int, now_s: float) -> str | None:
        """What is to be said now, if anything. ``now_s``: by a clock that never goes back."""
        if waiting:
            self._seen = now_s
        elif self._since is not None and now_s - self._seen > GAP_S:
            self._since, self._due = None, FIRST_S
        if not waiting:
            return None
        if self._since is None:
            self._since = now_s
        if now_s - self._since < self._due:
            return None
        first = self._due == FIRST_S
        self._due = AGAIN_S if first else 2 * self._due
        who = f"1 {self._one} waits" if waiting == 1 else f"{waiting} {self._one}s wait"
        if first:
            return f"{who} for room: each needs {self._need}"
        minutes = (now_s - self._since) / 60
        return (
            f"{who} for room, and some {self._one} has for {minutes:.0f} minutes: each needs "
            f"{self._need}. `ray status` shows whether a node that fits is on its way"
        )
