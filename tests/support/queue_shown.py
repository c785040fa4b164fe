"""Entries of the queue, for the pages: some run, some wait, some ended, and one is hostile."""

from __future__ import annotations

from sqlmodel import Session

from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.experiment_tags import replace_tags
from govray.platform.store.queue_entries import submit
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from tests.support.tree import ROOT

FILE = (ROOT / "jobs" / "train.yaml").read_text()
_S = ExperimentState

ENTRIES = (
    ("python-source-gpt", _S.RUNNING, "ada", 2, 0),
    ("learning-rate-search", _S.PREEMPTING, "grace", 8, -5),
    ("nightly-baseline", _S.QUEUED, "ada", 4, 0),
    ("urgent-fix", _S.QUEUED, "grace", 2, 10),
    ("too-large", _S.ERROR, "ada", 64, 0),
    ("yesterdays", _S.COMPLETED, "ada", 2, 0),
)
"""Name, state, user, slots, priority."""
WHY_NOT = "step 7: its ledger's root is not the registered one"


def add_queue(session: Session) -> None:
    """`ENTRIES`; the first has given a slot back."""
    for number, (name, state, user, slots, priority) in enumerate(ENTRIES):
        row = _entry(session, f"{8 + number:02}", name, user, slots, priority)
        row.state = state
        if state != _S.QUEUED:
            row.started, row.attempt = "2026-11-20T16:00:00Z", 1
        if state in (_S.ERROR, _S.COMPLETED):
            row.finished = "2026-11-20T17:00:00Z"
        if state == _S.ERROR:
            row.why = "the pool has 16 slots, and it asks for 64"
        if state == _S.COMPLETED:
            row.attested, row.not_attested = "NOT_ATTESTED", WHY_NOT
        if number == 0:
            row.cap, row.held, row.gives_to = 1, 1, "s-20261120-110000-0a1b2c3d"
    session.flush()


def add_hostile_entries(session: Session, text: str) -> str:
    """Entries, a task too, in whose every field is ``text``; the id of the one that ended."""
    made = [_entry(session, f"{20 + i}", text, text, 1, 0, pool=text, config=text) for i in (0, 1)]
    ended = made[1]
    ended.state, ended.why, ended.job, ended.archive = _S.ERROR, text, text, text
    ended.policy = text
    replace_tags(session, ended.id, [text])
    ended.attested, ended.not_attested = "NOT_ATTESTED", text
    made[0].state, made[0].cap, made[0].gives_to = _S.RUNNING, 0, text
    task = _entry(session, "22", text, text, 1, 0, pool=text, config=text)
    task.kind, task.state, task.why = "notebook", _S.RUNNING, text
    session.flush()
    return ended.id


def _entry(
    session: Session,
    hour: str,
    name: str,
    user: str,
    slots: int,
    priority: int,
    *,
    pool: str = "default",
    config: str = FILE,
) -> QueueEntry:
    return submit(
        session,
        kind="train",
        name=name,
        project=name if pool != "default" else "research",
        config=config,
        slots=slots,
        by=ChangedBy(user=user, at=f"2026-11-20T{hour}:00:00Z"),
        pool=pool,
        priority=priority,
    )
