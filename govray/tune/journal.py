"""What a scheduler saw, one JSON line an event, so that a search that is resumed knows it again.

Ray Tune keeps trials and searchers when a search is resumed, and no scheduler's state. A scheduler
decides by its events alone; read back in their order, they give the state that it had.

An event is written before it is acted on. A last line that a crash cut off is dropped: nothing
followed from it. What it does not do: interpret events.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from govray.errors import Malformed


class Event(BaseModel):
    """One event.

    Attributes:
        kind: What happened.
        trial: To which; empty for ``close``.
        step, objective: Of a report; no objective is one that cannot be judged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["add", "report", "died", "invalid", "close"]
    trial: str = ""
    step: int = 0
    objective: float | None = None


def reported(trial: str, step: int, objective: float) -> Event:
    """The event of a report; JSON has no infinity."""
    judged = objective if math.isfinite(objective) else None
    return Event(kind="report", trial=trial, step=step, objective=judged)


class Journal:
    """The events of one search, in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: Event) -> None:
        """Write an event down."""
        with self.path.open("a") as file:
            file.write(event.model_dump_json(exclude_defaults=True) + "\n")

    def read(self) -> list[Event]:
        """All events, oldest first; none if there is no file.

        Raises:
            Malformed: A line is no event.
        """
        if not self.path.exists():
            return []
        *lines, last = self.path.read_text().split("\n")
        if last:
            self.path.write_text("".join(f"{line}\n" for line in lines))
        return [self._event(number, line) for number, line in enumerate(lines, 1)]

    def _event(self, number: int, line: str) -> Event:
        try:
            value: Any = json.loads(line)
            return Event.model_validate(value)
        except (ValueError, ValidationError) as error:
            raise Malformed(
                "not an event of a search",
                where=f"{self.path}, line {number}",
                do="Start the search anew",
            ) from error
