"""A job as the reconciler sees it, and what it asks of a cluster, such as Ray Jobs; its command.

A job's name is the submission's, the number of the attempt, and letters that nobody can guess. A
job that somebody put there beforehand would be taken for it. A cluster never starts one name
twice, so a start may be asked for again whenever it is not known to have arrived.

The back ends (`ray_jobs`, `kubernetes_jobs`) are the only places that know Ray Jobs or Kubernetes.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from govray.errors import GovrayError, Refused, UsageError, suggestion
from govray.governance.submission.register_forms import Isolation
from govray.platform.queue.job_folder import CONFIG, FACTS, from_anywhere
from govray.platform.store.tables import QueueEntry
from govray.platform.tasks.task_file import KINDS
from govray.storage.place import Place


class Unreachable(GovrayError):
    """The cluster did not answer, or answered that it cannot tell. Nothing is known of any job."""

    exit_code = 3


class JobRefused(Refused):
    """The cluster or the job's inputs refuse the job. Another try would be refused too."""


class AttemptGone(GovrayError):
    """A job of this attempt has run, and the cluster has none: another attempt is due."""


RuntimeEnv = Callable[[QueueEntry, Path], dict[str, Any]]
"""Ray's environment of a submission, from its file and its folder."""


class JobState(StrEnum):
    """How a job stands on the cluster. ``STOPPED``: the cluster ended it, as it was asked to.
    ``PREEMPTED``: others of the cluster have its place, and it is to be stopped."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    PREEMPTED = "PREEMPTED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the cluster says of a job. ``name``: the submission's id and the attempt. ``code``: the
    exit code of its driver; negative for a signal, None if it is not known. ``message``: the
    end of its log, if it failed. ``node``: the IP address of its node, once it runs. ``waits``: why
    it doesn't, if the cluster says so."""

    name: str
    submission: str
    state: JobState
    code: int | None = None
    message: str = ""
    node: str | None = None
    waits: str | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


class Cluster(Protocol):
    """What starts, stops and knows jobs: the queue's back end. Every call may raise `Unreachable`.

    A job's state, the end of its log and its node's address are in what `look` answers.
    ``isolation`` says what else could reach a run.
    """

    isolation: Isolation

    def start(self, row: QueueEntry) -> None:
        """Start the job ``row.job`` unless the cluster has or had it. Raises `JobRefused`, and
        `AttemptGone`: it ran, as others know."""

    def look(self, job: str) -> Job | None:
        """What the cluster says of a job; None if it knows none of that name."""

    def stop(self, job: str) -> None:
        """Ask a job to commit and end. Does nothing where it has ended, or is not there."""

    def running(self) -> list[Job]:
        """The jobs of any submission that have not ended."""


def job_name(submission: str, attempt: int) -> str:
    # At most 47 characters, which is KubeRay's bound (v1.7.0, utils/constant.go,
    # MaxRayJobNameLength), up to 99,999 attempts.
    return f"{submission}-{attempt}-{secrets.token_hex(7)}"


_TASK = "python jobs/task.py --id {id} --storage {storage} --config {config}"

ENTRYPOINTS: Mapping[str, str] = {
    "train": "python jobs/train.py --config {config} --submission {submission}",
    "tune": "python jobs/tune.py --config {config} --submission {submission}",
    **dict.fromkeys(KINDS, _TASK),
}
"""What a kind runs. ``{config}`` and ``{submission}`` are files of the working directory."""

UNSIGNED = " --unsigned"
"""Behind the command of a run that the attestor signs: its job reads no key."""


def entrypoint(row: QueueEntry, storage: Place) -> str:
    """The command of an entry, in its folder."""
    kind = row.kind
    form = ENTRYPOINTS.get(kind)
    if form is None:
        raise UsageError(
            f"nothing runs a submission of kind {kind!r}{suggestion(kind, ENTRYPOINTS)}",
            where="kind",
            do=f"Known are: {', '.join(sorted(ENTRYPOINTS))}",
        )
    words = {"config": CONFIG, "submission": FACTS, "id": row.id, "storage": from_anywhere(storage)}
    return form.format_map({name: shlex.quote(word) for name, word in words.items()})


@contextmanager
def preparing(storage: Place) -> Iterator[None]:
    """What is wrong with a job's folder refuses the job. While the storage is away, nothing does.

    Raises:
        Unreachable, JobRefused: In the place of what the block raised.
    """
    try:
        yield
    except OSError as error:
        raise Unreachable(
            f"its working directory cannot be read: {error}", where=str(storage)
        ) from None
    except GovrayError as error:
        raise JobRefused(error.what, where=error.where, do=error.do) from None
