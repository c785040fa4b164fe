"""What an event log says of a run's state, event by event: a sum that goes on where it ended.

* An attempt lasts from its start to the event that ends it, or to the start of the next. If its
  driver ended without a word, it lasts to its last event: what came after is unknown and not
  counted.
* How a run ended is what its newest driver says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from govray.governance.formats.document import parse_time
from govray.train.run_folder import events

Ended = Literal["killed", "stopped", "failed"]


@dataclass
class LogSummary:
    """The sum of the events taken so far.

    Attributes:
        attempts, attempt, world_size: How many began; number and workers of the newest.
        step, loss: Steps done, and the last loss told.
        ended, why: How the newest driver's run ended, if it said so, and by which error.
        last: The time of the last event.
    """

    attempts: int = 0
    attempt: int = 0
    world_size: int | None = None
    step: int = 0
    loss: float | None = None
    ended: Ended | None = None
    why: str | None = None
    last: str = ""
    _seconds: float = 0.0
    _began: str | None = None

    @classmethod
    def of(cls, log: Iterable[events.AnyEvent]) -> LogSummary:
        """That of a whole log."""
        found = cls()
        for event in log:
            found.take(event)
        return found

    def to_json(self) -> dict[str, Any]:
        """Its fields, for ``LogSummary(**fields)``."""
        return asdict(self)

    @property
    def worker_seconds(self) -> float:
        """Seconds of all workers of all attempts. See the module for what an attempt lasts."""
        return self._seconds + self._lasted(self.last)

    def take(self, event: events.AnyEvent) -> None:
        """Add the next event."""
        ends = None
        match event:
            case events.DriverStarted():
                self.ended = self.why = None
                ends = self.last
            case events.AttemptStarted() | events.Stopped() | events.Finished() | events.Killed():
                ends = event.at
            case events.Failed():
                ends = event.at
        if ends is not None:
            self._seconds, self._began = self._seconds + self._lasted(ends), None
        match event:
            case events.AttemptStarted():
                self._began, self.world_size = event.at, event.world_size
                self.attempts, self.attempt, self.step = (
                    self.attempts + 1,
                    event.attempt,
                    event.step,
                )
            case events.Progress():
                self.step = event.step + 1
                self.loss = self.loss if event.loss is None else event.loss
            case events.Stopped() | events.Finished():
                self.step = event.step
        if self.ended != "killed":
            match event:
                case events.Killed():
                    self.ended, self.why = "killed", None
                case events.Stopped():
                    self.ended, self.why = "stopped", None
                case events.Failed(decision="stop"):
                    self.ended, self.why = "failed", event.what
        self.last = event.at

    def _lasted(self, until: str) -> float:
        """Seconds of the workers of the attempt that runs, up to a time."""
        if self._began is None or self.world_size is None:
            return 0.0
        # A clock that was set back takes nothing away.
        lasted = (parse_time(until) - parse_time(self._began)).total_seconds()
        return max(lasted, 0.0) * self.world_size
