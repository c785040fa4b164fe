"""A run's event log, read a piece at a time: what is new of it, and where the next call goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlmodel import Session

from govray.platform.indexing.run_rows import Profiles, put_decisions, put_numbers, supersede
from govray.platform.store import tables
from govray.storage.place import Place
from govray.train.inputs.run_listing import LogSummary
from govray.train.run_folder import event_rows, events

_COMMITS = 64


@dataclass(frozen=True, kw_only=True)
class IndexBudget:
    """What one call may take.

    Attributes:
        log_bytes: Of a run's event log that are new, in one call.
        file_bytes: Of its record, and of its write-ahead file.
        folder_seconds: For the events of one run.
        seconds: After which no further folder is begun.
    """

    log_bytes: int = 16 << 20
    file_bytes: int = 256 << 20
    folder_seconds: float = 5.0
    seconds: float = 60.0


@dataclass
class LogReading:
    """How far a run's event log is indexed, and what its rest is added to.

    Attributes:
        offset: Bytes that are read.
        log: The sum of their events.
        decisions, branches, profiles: How many the store has.
        commits: (Step, digest, time) of the newest: their files may be seen later.
        lines: How often each line of numbers is halved.
        more: Whether there is more than the budget let be read.
    """

    offset: int = 0
    log: LogSummary = field(default_factory=LogSummary)
    decisions: int = 0
    branches: int = 0
    profiles: int = 0
    commits: list[tuple[int, str, str]] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    more: bool = False

    @classmethod
    def of(cls, row: tables.RunRow, size: int) -> LogReading:
        """That of a run whose log has so many bytes; a shorter one than before is read anew."""
        if not row.reading or size < row.read_bytes:
            return cls()
        return cls(
            **{**row.reading, "offset": row.read_bytes, "log": LogSummary(**row.reading["log"])}
        )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "offset"}

    def read(self, folder: Place, budget: IndexBudget) -> list[events.AnyEvent]:
        """The events that are new, within the budget."""
        new: list[events.AnyEvent] = []
        most, until = self.offset + budget.log_bytes, time.monotonic() + budget.folder_seconds
        self._attempt = self.log.attempt
        self.more = False
        for offset, event in events.read_from(folder, self.offset):
            if self.more:
                return new
            new.append(event)
            self.log.take(event)
            self.offset = offset
            self.more = offset >= most or time.monotonic() > until
        self.more = False
        return new

    def put(
        self, session: Session, run: str, new: Sequence[events.AnyEvent], measured: Profiles
    ) -> None:
        """Add what events and profiles have to the run's rows."""
        began = [(e.step, e.attempt) for e in new if isinstance(e, events.AttemptStarted)]
        touched = supersede(session, run, began)
        put_numbers(session, run, event_rows.numbers(new, self._attempt), self.lines, touched)
        made = event_rows.decisions(new)
        put_decisions(session, run, "events", made, after=self.decisions)
        self.decisions += len(made)
        # Another branch archives what is there.
        known = self.profiles if self.branches == measured.branches else 0
        bounds = [number for each in measured.numbers[known:] for number in each]
        put_numbers(session, run, bounds, self.lines)
        self.branches, self.profiles = measured.branches, len(measured.numbers)

    def commit_times(self, new: Sequence[events.AnyEvent]) -> dict[tuple[int, str], str]:
        """(Step, digest) → when that checkpoint was committed, of those that may be new."""
        times = {(step, digest): at for step, digest, at in self.commits}
        times |= event_rows.commit_times(new)
        self.commits = [(*key, at) for key, at in times.items()][-_COMMITS:]
        return times
