"""Why an attempt failed, and whether the run starts another: pure functions.

There are three classes. Failures of machines restart the run and don't count: a lost worker, node
or peer, or a preemption. Failures of the user's code or data count against
``max_restarts``. What governance refuses is never retried, because the same input would be refused
again.

Machines that keep failing must end a run too. After `MAX_STALLED` such failures in a row without a
newer step in the write-ahead file, the run stops with an error.

Modelled on Ray Train's failure policy, which returns a decision but counts everything that a worker
raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import ray
import torch.distributed as dist
from ray.train.v2._internal.exceptions import RayTrainError

from govray.data.prepared.ray_failures import cause, lost_by_ray
from govray.errors import GovrayError, InfrastructureFailed, Refused
from govray.train.run_folder.events import Failed, LogMatched

Kind = Literal["infrastructure", "user", "refused"]

MAX_STALLED = 5
"""A run ends after this many failures of machines in a row at the same step."""

_SEVERITY: tuple[Kind, ...] = ("refused", "user", "infrastructure")
"""The first of several ranks' errors decides: a lost peer is often the result of another error."""

_GLOO = ("gloo", "Connection closed by peer", "Connection reset by peer")
"""In a RuntimeError's text: torch's gloo backend has no exception of its own."""


@dataclass(frozen=True)
class AttemptFailure:
    """One attempt's failure. ``rank``: the rank that failed first, if known."""

    kind: Kind
    rank: int | None
    error: GovrayError


@dataclass(frozen=True)
class RestartDecision:
    """What follows a failure: another attempt, or this error."""

    restart: bool
    error: GovrayError


def classify(errors: Mapping[int, BaseException], *, where: str) -> AttemptFailure:
    """The failure behind the errors of an attempt's ranks.
    ``errors``: rank to what it raised, at least one."""
    kinds = {rank: _kind(cause(error)) for rank, error in errors.items()}
    kind = next(each for each in _SEVERITY if each in kinds.values())
    rank = min(rank for rank, each in kinds.items() if each == kind)
    raised = cause(errors[rank])
    if isinstance(raised, GovrayError):
        return AttemptFailure(kind, rank, raised)
    what = f"{type(raised).__name__}: {raised}".splitlines()[0]
    return AttemptFailure(
        kind,
        rank,
        GovrayError(
            f"rank {rank} failed: {what}", where=where, do="Whole checkpoints stay; see its log"
        ),
    )


def ended(error: BaseException, *, where: str) -> GovrayError:
    """The error of a run that Ray Train gave up, outside of its workers' loops."""
    if isinstance(error, GovrayError):
        return error
    what = f"the training controller failed: {type(error).__name__}: {error}".splitlines()[0]
    if _kind(cause(error)) == "infrastructure":
        do = "Whole checkpoints stay; give the same command again"
        return InfrastructureFailed(what, where=where, do=do)
    return GovrayError(
        what, where=where, do="Whole checkpoints stay; logs are in the Ray dashboard"
    )


def preempted(error: BaseException) -> bool:
    """Whether a worker died because its node was taken away."""
    cause = getattr(error, "health_check_failure", error)
    return isinstance(cause, ray.exceptions.RayActorError) and bool(cause.preempted)


def decide(
    failure: AttemptFailure, past: Sequence[Failed], *, step: int, max_restarts: int
) -> RestartDecision:
    """Whether to start another attempt.

    Args:
        past: Earlier failures of the run under this driver, oldest first.
        step: The first step that the write-ahead file doesn't hold.
        max_restarts: Most restarts after failures of the user's code; negative for no limit.
    """
    error = failure.error
    if failure.kind == "refused":
        return RestartDecision(False, error)
    if failure.kind == "user":
        count = sum(each.failure == "user" for each in past)
        return RestartDecision(max_restarts < 0 or count < max_restarts, error)
    stalled = 1
    for each in reversed(past):
        if each.failure != "infrastructure" or each.step < step:
            break
        stalled += 1
    if stalled < MAX_STALLED:
        return RestartDecision(True, error)
    return RestartDecision(
        False,
        GovrayError(
            f"{stalled} attempts in a row were lost before step {step} was done; the last one: "
            f"{error.what}",
            where=error.where,
            do="Look for the cause (memory, disk, nodes), then resume the run",
        ),
    )


def not_retried(error: GovrayError, line: LogMatched) -> GovrayError:
    """The error of an attempt that no other follows, for a line of its log."""
    return GovrayError(
        f"{error.what}; not tried again, since {line.log} has {line.pattern!r}",
        where=error.where,
        do="Mend what log_policies names there, then resume the run",
    )


def _kind(error: BaseException) -> Kind:
    if isinstance(error, Refused):
        return "refused"
    if isinstance(error, InfrastructureFailed | dist.DistError | RayTrainError):
        return "infrastructure"
    if lost_by_ray(error):
        return "infrastructure"
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _GLOO):
        return "infrastructure"
    return "user"
