"""The states of experiments, runs and checkpoints, and which may follow which.

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
    """How an experiment stands, or a task: what the queue says of it, or its runs if it has none.

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


class RunState(StrEnum):
    """How a run stands, as its folder says. The words are those of an experiment, and mean the
    same. ``INTERRUPTED``: its driver ended without a word."""

    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    INTERRUPTED = "INTERRUPTED"
    COMPLETED = "COMPLETED"
    KILLED = "KILLED"
    ERROR = "ERROR"


class CheckpointState(StrEnum):
    """``ACTIVE`` is being uploaded, and nobody but its writer may see it."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    DELETED = "DELETED"


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


_E, _R, _C = ExperimentState, RunState, CheckpointState

EXPERIMENT: Mapping[ExperimentState, frozenset[ExperimentState]] = {
    _E.QUEUED: frozenset({_E.RUNNING, _E.STOPPED, _E.KILLED, _E.ERROR}),
    # Back to QUEUED: the driver or the head died, and nobody asked for it.
    _E.RUNNING: frozenset(_E) - {_E.RUNNING},
    # A request for more, while one waits for a commit, is granted.
    _E.PREEMPTING: frozenset(_E) - {_E.PREEMPTING, _E.RUNNING},
    _E.STOPPING: frozenset({_E.KILLING, _E.STOPPED, _E.COMPLETED, _E.KILLED, _E.ERROR}),
    _E.KILLING: frozenset({_E.KILLED, _E.COMPLETED, _E.ERROR}),
    _E.COMPLETED: frozenset(),
    # Resumed by who asks for it.
    _E.STOPPED: frozenset({_E.QUEUED}),
    _E.KILLED: frozenset({_E.QUEUED}),
    _E.ERROR: frozenset({_E.QUEUED}),
}
"""As the queue moves what was submitted."""

RUN: Mapping[RunState, frozenset[RunState]] = {
    _R.RUNNING: frozenset(_R) - {_R.RUNNING},
    _R.STOPPING: frozenset(_R) - {_R.STOPPING},
    _R.STOPPED: frozenset({_R.RUNNING, _R.COMPLETED, _R.KILLED, _R.ERROR}),
    _R.INTERRUPTED: frozenset({_R.RUNNING, _R.COMPLETED, _R.KILLED, _R.ERROR}),
    _R.COMPLETED: frozenset(),
    # An experiment file that is run again goes on with what was ended.
    _R.KILLED: frozenset({_R.RUNNING}),
    _R.ERROR: frozenset({_R.RUNNING}),
}
"""As the index sees a run, and by its runs an experiment that no queue knows."""

CHECKPOINT: Mapping[CheckpointState, frozenset[CheckpointState]] = {
    _C.ACTIVE: frozenset({_C.COMPLETED, _C.ERROR}),
    _C.COMPLETED: frozenset({_C.DELETED}),
    _C.ERROR: frozenset({_C.DELETED}),
    _C.DELETED: frozenset(),
}

State = TypeVar("State", ExperimentState, RunState, CheckpointState)


def step(table: Mapping[State, frozenset[State]], before: State, after: State, what: str) -> State:
    """``after``, if it may follow ``before``; a state follows itself."""
    if after != before and after not in table[before]:
        raise Refused(f"{before} is not followed by {after}", where=what)
    return after


def advance(
    table: Mapping[State, frozenset[State]], before: State, after: State, what: str
) -> State:
    """``after``, at once or by way of the table's first state, in which it goes on: what may have
    happened between two looks."""
    active = next(iter(table))
    if after != before and after not in table[before]:
        before = step(table, before, active, what)
    return step(table, before, after, what)
