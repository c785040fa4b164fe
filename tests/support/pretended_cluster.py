"""A cluster in memory, whose calls can be lost before or after they did something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from govray.governance.submission.register_forms import Isolation
from govray.platform.queue.job import Job, JobRefused, JobState, Unreachable
from govray.platform.store.tables import QueueEntry

RUNS_FOR = 3
"""Ticks that a submission needs in all. What it did before it was stopped is not done again."""


@dataclass
class PretendedCluster:
    """Jobs that go on by `tick`, and a run for each submission that several jobs may work on."""

    jobs: dict[str, Job] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    trained_by: dict[str, list[list[str]]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    down: bool = False
    refuses: set[str] = field(default_factory=set)
    loses: set[str] = field(default_factory=set)
    at_call: Callable[[], None] = lambda: None
    isolation: Isolation = "sharedCluster"

    def start(self, row: QueueEntry) -> None:
        self._asked()
        assert row.job is not None
        if row.id in self.refuses:
            raise JobRefused("it is not accepted", where=row.id)
        if row.id in self.loses:
            raise Unreachable("it did not arrive", where=row.id)
        if row.job not in self.jobs:
            self.jobs[row.job] = Job(name=row.job, submission=row.id, state=JobState.RUNNING)
        self.at_call()

    def look(self, job: str) -> Job | None:
        self._asked()
        return self.jobs.get(job)

    def stop(self, job: str) -> None:
        self._asked()
        if job in self.jobs and not self.jobs[job].ended:
            self.told.add(job)
        self.at_call()

    def running(self) -> list[Job]:
        self._asked()
        return [job for job in self.jobs.values() if not job.ended]

    def _asked(self) -> None:
        self.at_call()
        if self.down:
            raise Unreachable("nothing answers", where="the head")

    # What happens on the cluster

    def tick(self) -> None:
        """Every job does one piece of its run's work, or ends."""
        at_work: dict[str, list[str]] = {}
        for job in self.live():
            if job.name in self.told:
                self.end(job.name, JobState.STOPPED)
            elif self.done.get(job.submission, 0) >= RUNS_FOR:
                self.end(job.name, JobState.SUCCEEDED, code=0)
            else:
                at_work.setdefault(job.submission, []).append(job.name)
        for submission, names in at_work.items():
            self.done[submission] = self.done.get(submission, 0) + 1
            self.trained_by.setdefault(submission, []).append(names)

    def live(self) -> list[Job]:
        return [job for job in self.jobs.values() if not job.ended]

    def end(
        self, name: str, state: JobState, *, code: int | None = None, message: str = ""
    ) -> None:
        self.jobs[name] = replace(self.jobs[name], state=state, code=code, message=message)

    def die(self) -> None:
        """The head is gone with all that it knew, and drivers with it."""
        self.jobs.clear()
        self.told.clear()
        self.down = True
