"""What follows when a job has ended: a table of how it ended and of what it was asked to do.

A driver's exit code is its own word (`govray.errors`). 0 is done. 75 is a commit on request. 1, 2
and 3 are refusals, if its last words say ``govray:``; the same input would be refused again.
Everything else is a death: a signal, a lost node, a traceback. Nobody asked for it, so the entry
goes back to the queue. A 75 that the queue did not ask for is believed if there is a new commit.
Else any program could come back for ever, so without one it counts as a death does.

A notebook, a shell or TensorBoard ends with 0 when nobody used it. A command or inference ends with
the program's own code, and that is final: a program that fails is not run again unasked. So its 75
or 69 means what it means only with govray's own words. A signal is a death here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from govray.errors import GovrayError, InfrastructureFailed, Refused, Stopped, UsageError
from govray.platform.queue.job import Job, JobState
from govray.platform.store.run_owners import run_name
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from govray.platform.tasks.task_file import FINITE, SHOWN
from govray.printable import paragraph
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

_REFUSALS = frozenset({GovrayError.exit_code, Refused.exit_code, UsageError.exit_code, 3})
_COMES_BACK = frozenset({Stopped.exit_code, InfrastructureFailed.exit_code})
_LAST_SIGNAL = 64  # of Linux
_SAID = "govray: "
_LONGEST = 1000  # characters of a reason

AFTER_STOP: Mapping[ExperimentState, ExperimentState] = {
    ExperimentState.PREEMPTING: ExperimentState.QUEUED,
    ExperimentState.STOPPING: ExperimentState.STOPPED,
    ExperimentState.KILLING: ExperimentState.KILLED,
}
"""What was asked of an entry → its state once nothing of it runs."""


@dataclass(frozen=True)
class Outcome:
    """The state that follows, and why.

    Attributes:
        failure: Whether the job ended without being asked to. Such ends are counted.
        told: Whether it says that somebody else asked. With a new commit that is no failure.
    """

    after: ExperimentState
    why: str | None = None
    failure: bool = False
    told: bool = False


def outcome(state: ExperimentState, job: Job, kind: str = "train") -> Outcome:
    """What follows for an entry of ``kind`` in ``state`` whose job has ended."""
    if job.state is JobState.SUCCEEDED:
        return Outcome(ExperimentState.COMPLETED, "nobody used it" if kind in SHOWN else None)
    reason = refusal(job) or (own_failure(job) if kind in FINITE else None)
    if reason is not None and state is not ExperimentState.KILLING:
        return Outcome(ExperimentState.ERROR, reason)
    if state in AFTER_STOP:
        return Outcome(AFTER_STOP[state], _asked(state))
    if job.state is JobState.STOPPED:
        return Outcome(ExperimentState.STOPPED, "its job was stopped on the cluster")
    if job.code == Stopped.exit_code:
        why = "its driver was told to stop, not by the queue"
        return Outcome(ExperimentState.QUEUED, why, failure=True, told=True)
    return Outcome(ExperimentState.QUEUED, _death(job), failure=True)


def vanished(state: ExperimentState) -> Outcome:
    """What follows for an entry whose job the cluster does not know: its head was replaced, or it
    was deleted as it was asked to."""
    if state in AFTER_STOP:
        return Outcome(AFTER_STOP[state], _asked(state))
    why = "the cluster lost its job: the head was replaced"
    return Outcome(ExperimentState.QUEUED, why)


def refusal(job: Job) -> str | None:
    """The reason for which a job's driver refused, in its own words; None if it did not."""
    if job.state is not JobState.FAILED or job.code not in _REFUSALS:
        return None
    said = _said(job)
    return paragraph(said[-1].removeprefix(_SAID))[:_LONGEST] if said else None


def own_failure(job: Job) -> str | None:
    """How a program that ends by itself failed; None if a signal, the cluster or govray ended it.
    `jobs/task.py` gives a program's signal as a shell does, as 128 and its number."""
    if job.state is not JobState.FAILED or job.code is None or job.code < 0:
        return None
    if 128 < job.code <= 128 + _LAST_SIGNAL:
        return None
    if job.code in _COMES_BACK and _said(job):
        return None
    return f"its program ended with code {job.code}{_last_word(job)}"


def _said(job: Job) -> list[str]:
    return [line for line in job.message.splitlines() if line.startswith(_SAID)]


def _asked(state: ExperimentState) -> str | None:
    if state is ExperimentState.PREEMPTING:
        return "it gave way to a higher priority"
    return None


def _death(job: Job) -> str:
    if job.code is not None and job.code < 0:
        return f"its driver was ended by signal {-job.code}"
    if job.code is not None and job.code > 128:
        return f"its driver was ended by signal {job.code - 128}"
    if job.code is None:
        return _last_word(job).removeprefix(": ") or "without a word"
    return f"its driver ended with code {job.code}{_last_word(job) or ': without a word'}"


def _last_word(job: Job) -> str:
    lines = [line.strip() for line in job.message.splitlines() if line.strip()]
    return f": {paragraph(lines[-1])[:_LONGEST]}" if lines else ""


# Whether a run got further: a commit of it that is newer than its last start.
#
# Commits are looked for beside the run, below the storage path. Where an experiment keeps them
# elsewhere, none is seen, and each death counts as one without progress.


_COMMITS = ("checkpoint_*/manifest.json", "*/checkpoint_*/manifest.json")
"""Of a run, and of the trials of a search."""


def committed_below(storage: Place) -> Callable[[QueueEntry, datetime], bool]:
    """Whether the run of an entry has a commit newer than a time, for runs below ``storage``. A
    storage that cannot be read has none."""

    def committed(row: QueueEntry, since: datetime) -> bool:
        folder = storage / run_name(row)
        try:
            return any(
                modified(manifest) > since for each in _COMMITS for manifest in folder.glob(each)
            )
        except OSError:
            return False

    return committed


def modified(path: Place) -> datetime:
    """When a file was written, by the clock of its storage."""
    if isinstance(path, BucketPath):
        return path.stat().modified
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)
