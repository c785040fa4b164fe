"""The states of experiments, runs, checkpoints and submissions, and which may follow which.

Pure tables. A state outside the keys, or a step outside the table, is refused. An index that learns
of changes in the wrong order must not make a finished run go on.

A checkpoint's deletion keeps the row and drops the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from govray.errors import Refused


class ExperimentState(StrEnum):
    """How an experiment stands. ``STOPPING`` waits for a commit."""

    ACTIVE = "ACTIVE"
    STOPPING = "STOPPING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"


class RunState(StrEnum):
    """How a run stands. ``INTERRUPTED``: its driver ended without a word."""

    ACTIVE = "ACTIVE"
    STOPPING = "STOPPING"
    PAUSED = "PAUSED"
    INTERRUPTED = "INTERRUPTED"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"


class CheckpointState(StrEnum):
    """``ACTIVE`` is being uploaded, and nobody but its writer may see it."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    DELETED = "DELETED"


class SubmissionState(StrEnum):
    """How a submission stands in the queue.

    ``PREEMPTING`` and ``STOPPING`` wait for a commit: the first comes back to the queue, the
    second ends. ``KILLING`` waits for nothing but the end of the processes.
    """

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PREEMPTING = "PREEMPTING"
    STOPPING = "STOPPING"
    KILLING = "KILLING"
    COMPLETED = "COMPLETED"
    STOPPED = "STOPPED"
    KILLED = "KILLED"
    ERROR = "ERROR"


class DeliveryState(StrEnum):
    """How one event stands with one webhook. ``DEAD``: it was tried as often as is tried."""

    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    DEAD = "DEAD"


class CaseState(StrEnum):
    """How a rights holder's case stands: each state follows the one before.

    A search may be made again until something is decided. ``CLOSED``: the text is gone.
    """

    RECEIVED = "RECEIVED"
    SEARCHED = "SEARCHED"
    ANSWERED = "ANSWERED"
    DECIDED = "DECIDED"
    CLOSED = "CLOSED"


_E, _T, _C, _S = ExperimentState, RunState, CheckpointState, SubmissionState

EXPERIMENT: Mapping[ExperimentState, frozenset[ExperimentState]] = {
    _E.ACTIVE: frozenset(_E) - {_E.ACTIVE},
    _E.STOPPING: frozenset(_E) - {_E.STOPPING},
    _E.PAUSED: frozenset({_E.ACTIVE, _E.COMPLETED, _E.CANCELED, _E.ERROR}),
    _E.COMPLETED: frozenset(),
    # An experiment file that is run again goes on with what was ended.
    _E.CANCELED: frozenset({_E.ACTIVE}),
    _E.ERROR: frozenset({_E.ACTIVE}),
}

RUN: Mapping[RunState, frozenset[RunState]] = {
    _T.ACTIVE: frozenset(_T) - {_T.ACTIVE},
    _T.STOPPING: frozenset(_T) - {_T.STOPPING},
    _T.PAUSED: frozenset({_T.ACTIVE, _T.COMPLETED, _T.CANCELED, _T.ERROR}),
    _T.INTERRUPTED: frozenset({_T.ACTIVE, _T.COMPLETED, _T.CANCELED, _T.ERROR}),
    _T.COMPLETED: frozenset(),
    _T.CANCELED: frozenset({_T.ACTIVE}),
    _T.ERROR: frozenset({_T.ACTIVE}),
}

CHECKPOINT: Mapping[CheckpointState, frozenset[CheckpointState]] = {
    _C.ACTIVE: frozenset({_C.COMPLETED, _C.ERROR}),
    _C.COMPLETED: frozenset({_C.DELETED}),
    _C.ERROR: frozenset({_C.DELETED}),
    _C.DELETED: frozenset(),
}

SUBMISSION: Mapping[SubmissionState, frozenset[SubmissionState]] = {
    _S.QUEUED: frozenset({_S.RUNNING, _S.STOPPED, _S.KILLED, _S.ERROR}),
    # Back to QUEUED: the driver or the head died, and nobody asked for it.
    _S.RUNNING: frozenset(_S) - {_S.RUNNING},
    # Who asks for more while one waits for a commit gets it.
    _S.PREEMPTING: frozenset(_S) - {_S.PREEMPTING, _S.RUNNING},
    _S.STOPPING: frozenset({_S.KILLING, _S.STOPPED, _S.COMPLETED, _S.KILLED, _S.ERROR}),
    _S.KILLING: frozenset({_S.KILLED, _S.COMPLETED, _S.ERROR}),
    _S.COMPLETED: frozenset(),
    # Resumed by who asks for it.
    _S.STOPPED: frozenset({_S.QUEUED}),
    _S.KILLED: frozenset({_S.QUEUED}),
    _S.ERROR: frozenset({_S.QUEUED}),
}

State = TypeVar("State", ExperimentState, RunState, CheckpointState, SubmissionState)


def step(table: Mapping[State, frozenset[State]], before: State, after: State, what: str) -> State:
    """``after``, if it may follow ``before``; a state follows itself."""
    if after != before and after not in table[before]:
        raise Refused(f"{before} is not followed by {after}", where=what)
    return after


def advance(
    table: Mapping[State, frozenset[State]], before: State, after: State, what: str
) -> State:
    """``after``, at once or by way of ACTIVE: what may have happened between two looks."""
    active = type(before)("ACTIVE")
    if after != before and after not in table[before]:
        before = step(table, before, active, what)
    return step(table, before, after, what)
