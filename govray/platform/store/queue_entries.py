"""The queue's entries: put in, asked to stop, and moved from state to state by compare-and-set.

A submission writes an entry in state QUEUED. A reconciler, which alone talks to the cluster, moves
it on. Both ask for a change by naming the state that they saw. Of two that change one entry at
once, one is told no and looks again. So nothing is started twice, however many processes there are.

Which waiting entry is next is not decided here. Functions take a session and never commit. Times
are arguments.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, func, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from govray.errors import Refused, UsageError
from govray.platform.store import tables
from govray.platform.store.audit_log import ChangedBy, log
from govray.platform.store.experiment_tags import replace_tags
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.states import EXPERIMENT, ExperimentState, RunState, step
from govray.platform.store.tables import QueueEntry

LONGEST_CONFIG = 1 << 18
"""Characters of an experiment file."""

_S = ExperimentState
HELD = frozenset({_S.RUNNING, _S.PREEMPTING, _S.STOPPING, _S.KILLING})
"""States in which an entry holds its slots."""

ENDED = frozenset({_S.COMPLETED, _S.STOPPED, _S.KILLED, _S.ERROR})

_GIVES_NOTHING: dict[str, Any] = dict.fromkeys(("cap", "capped", "gives_to", "held"))


def new_id(at: str, earlier: int) -> str:
    """A name for an entry made at ``at``, in the order in which they were submitted.
    ``earlier``: how many were submitted in the same second before. A script submits many."""
    digits = re.sub(r"\D", "", at)
    place = min(earlier, 0xFF)
    return f"s-{digits[:8]}-{digits[8:14]}-{place:02x}{secrets.token_hex(3)}"


def draft(
    session: Session,
    *,
    name: str,
    config: str,
    by: ChangedBy,
    pool: str = "default",
    priority: int = 0,
    **columns: Any,
) -> QueueEntry:
    """An entry that is not in the queue yet, with an id of its own.

    Args:
        columns: Its other columns: kind, project and slots, and what else is known.
    """
    if len(config) > LONGEST_CONFIG:
        raise UsageError(
            f"the file has {len(config)} characters, more than {LONGEST_CONFIG}", where=name
        )
    same_second = select(func.count()).where(col(QueueEntry.submitted) == by.at)
    return QueueEntry(
        **columns,
        pool=pool,
        priority=priority,
        id=new_id(by.at, session.exec(same_second).one()),
        name=name,
        config=config,
        user=by.user,
        token=by.token,
        state=ExperimentState.QUEUED,
        submitted=by.at,
    )


def put(
    session: Session, row: QueueEntry, tags: Iterable[str] = (), *, by: ChangedBy
) -> QueueEntry:
    """Put a drafted entry in the queue, with the tags of its experiment."""
    session.add(row)
    replace_tags(session, row.id, tags)
    log(session, by, f"{noun(row)} submitted", row.id, {"project": row.project, "kind": row.kind})
    return row


def submit(
    session: Session, tags: Iterable[str] = (), *, by: ChangedBy, **given: Any
) -> QueueEntry:
    """Put an entry in the queue: `draft` and `put`."""
    return put(session, draft(session, by=by, **given), tags, by=by)


def noun(row: QueueEntry) -> str:
    """What an entry is to people."""
    return "experiment" if row.kind in RUN_KINDS else "task"


def move(
    session: Session,
    row: QueueEntry,
    after: ExperimentState,
    *,
    changes: Mapping[str, Any] | None = None,
) -> bool:
    """Move an entry from the state that ``row`` has to ``after``; False if it has another by now.

    ``row`` is brought up to date in either case. An entry that is moved has no place in a line. One
    without slots has none to give back.
    """
    step(EXPERIMENT, row.state, after, f"{noun(row)} {row.id}")
    kept: dict[str, Any] = {} if after in HELD else _GIVES_NOTHING
    seen = col(QueueEntry.state) == row.state
    return _set(session, row, seen, {"state": after, "position": None} | kept | dict(changes or {}))


def _set(
    session: Session, row: QueueEntry, seen: ColumnElement[bool], changes: Mapping[str, Any]
) -> bool:
    """Change an entry that is still as it was seen, and bring ``row`` up to date. False if not."""
    result: CursorResult[Any] = session.connection().execute(
        update(tables.QueueEntry)
        .where(col(QueueEntry.id) == row.id, col(QueueEntry.attempt) == row.attempt, seen)
        .values(**changes)
    )
    session.expire(row)
    session.refresh(row)
    return result.rowcount == 1


def resize(session: Session, row: QueueEntry, changes: Mapping[str, Any]) -> bool:
    """Change what a running entry holds or is to keep; False if another changed it meanwhile.

    ``row`` is brought up to date in either case.

    Args:
        changes: Columns of those that `QueueEntry` has for it, and ``why``.
    """
    running = col(QueueEntry.state) == ExperimentState.RUNNING
    return _set(session, row, running & (col(QueueEntry.cap_number) == row.cap_number), changes)


def goes_on(session: Session, run: tables.RunRow) -> bool:
    """Whether a run runs, or has given way and goes on when it is its turn in the queue."""
    if run.state is not RunState.STOPPED:
        return run.state in (RunState.RUNNING, RunState.STOPPING)
    row = session.get(QueueEntry, run.experiment)
    return row is not None and row.kind == "train" and row.state not in ENDED


def slots_held(row: QueueEntry) -> int:
    """The slots of an entry that holds some: fewer than it asked for once it gave some back."""
    return row.slots if row.held is None else row.held


_ASKED: Mapping[str, Mapping[ExperimentState, ExperimentState]] = {
    "stop": {_S.QUEUED: _S.STOPPED, _S.RUNNING: _S.STOPPING, _S.PREEMPTING: _S.STOPPING},
    "kill": {_S.QUEUED: _S.KILLED}
    | dict.fromkeys((_S.RUNNING, _S.PREEMPTING, _S.STOPPING), _S.KILLING),
    "resume": dict.fromkeys((_S.STOPPED, _S.KILLED, _S.ERROR), _S.QUEUED),
}
"""What people ask → the state it is in → the state that follows."""


def ask(session: Session, row: QueueEntry, what: str, *, by: ChangedBy) -> QueueEntry:
    """Stop, kill or resume an entry, as somebody asks for."""
    after = _ASKED[what].get(row.state)
    if after is None:
        known = ", ".join(state.value for state in _ASKED[what])
        raise Refused(
            f"it is {row.state}, and only what is {known} can be told to {what}",
            where=f"{noun(row)} {row.id}",
        )
    changes: dict[str, Any] = {}
    if after in ENDED:
        changes = {"finished": by.at, "why": f"{what} asked by {by.user} while it waited"}
    elif what == "resume":
        changes = {"finished": None, "why": None, "failures": 0}
    if not move(session, row, after, changes=changes):
        raise Refused(
            f"it has become {row.state} meanwhile",
            where=f"{noun(row)} {row.id}",
            do="Look at it, and ask again",
        )
    log(session, by, f"{noun(row)} {what}", row.id, {})
    return row


def archive(session: Session, row: QueueEntry, archived: bool, *, by: ChangedBy) -> QueueEntry:
    """Put an entry that has ended out of the lists, or back."""
    if archived and row.state not in ENDED:
        raise Refused(
            f"it is {row.state}, and only what has ended can be archived",
            where=f"{noun(row)} {row.id}",
            do="Stop or kill it first",
        )
    if row.archived != archived:
        row.archived = archived
        log(session, by, f"{noun(row)} {'archive' if archived else 'unarchive'}", row.id, {})
    return row


def places(session: Session, ids: Collection[str]) -> dict[str, int]:
    """Of those of ``ids`` that wait: how many of their pool go first, and one. One query. As the
    reconciler saw it last. Before it did, by priority and then by time."""
    if not ids:
        return {}
    s = QueueEntry
    order = (col(s.priority).desc(), col(s.submitted), col(s.id))
    ranked = (
        select(
            col(s.id),
            func.coalesce(
                col(s.position),
                func.row_number().over(partition_by=col(s.pool), order_by=order),
            ),
        )
        .where(col(s.state) == ExperimentState.QUEUED)
        .subquery()
    )
    key, place = ranked.c
    found = session.execute(select(key, place).where(key.in_(ids)))
    return {row[0]: row[1] for row in found}


def why(row: Any, standstill: str | None) -> str | None:
    """Why an entry is in its state.
    ``standstill``: why what waits does (`govray.platform.store.leases.standstill`)."""
    waits = row.state == ExperimentState.QUEUED
    found: str | None = row.why
    return standstill if waits and standstill else found


def asks(state: ExperimentState) -> tuple[str, ...]:
    """What people can ask of an entry in this state."""
    return tuple(what for what, follows in _ASKED.items() if state in follows)


def waiting(session: Session) -> list[QueueEntry]:
    """The entries in state QUEUED, in the order in which they were submitted. Their large texts
    stay in the store until one is asked for."""
    statement = select(QueueEntry).where(col(QueueEntry.state) == ExperimentState.QUEUED)
    statement = statement.options(defer(QueueEntry.config))  # type: ignore[arg-type]
    return list(session.exec(statement.order_by(col(QueueEntry.submitted), col(QueueEntry.id))))


def undecided(session: Session, kinds: Collection[str], most: int) -> list[QueueEntry]:
    """Entries of these kinds that have ended well, and whose attestor has decided nothing yet.
    Those that ended last come first."""
    statement = (
        select(QueueEntry)
        .where(
            col(QueueEntry.state) == ExperimentState.COMPLETED,
            col(QueueEntry.kind).in_(kinds),
            col(QueueEntry.attested).is_(None),
        )
        .order_by(col(QueueEntry.finished).desc())
        .limit(most)
    )
    return list(session.exec(statement))


def unplaced(session: Session) -> frozenset[str]:
    """The ids of entries that were submitted and have no place in a line yet."""
    return frozenset(
        session.exec(
            select(QueueEntry.id).where(
                col(QueueEntry.state) == ExperimentState.QUEUED,
                col(QueueEntry.position).is_(None),
                col(QueueEntry.attempt) == 0,
            )
        )
    )


def users(session: Session) -> frozenset[str]:
    """Everyone who has an entry, whatever became of it."""
    return frozenset(session.exec(select(QueueEntry.user).distinct()))


def holding(session: Session) -> list[QueueEntry]:
    """The entries that hold slots, in the order in which they were submitted."""
    statement = select(QueueEntry).where(col(QueueEntry.state).in_(HELD))
    return list(session.exec(statement.order_by(col(QueueEntry.submitted), col(QueueEntry.id))))
