"""The queue's entries: what may be asked of one, and that of two changes at once one is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select

from govray.platform.store import leases, queue_entries
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.experiment_tags import tags_of
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import AuditEntry, QueueEntry
from tests.support.databases import on_both

ADA = ChangedBy(user="ada", at="2026-11-24T09:00:00Z", token="t1")
S = ExperimentState


@pytest.fixture
def session(store: Engine) -> Iterator[Session]:
    with Session(store) as opened:
        yield opened


def put(session: Session, **more: object) -> QueueEntry:
    settings = {"kind": "train", "name": "gpt", "project": "default", "config": "a: 1", "slots": 2}
    row = queue_entries.submit(session, **{**settings, **more}, by=ADA)  # type: ignore[arg-type]
    session.commit()
    return row


@on_both
def test_an_entry_is_queued_in_order_and_who_submitted_it_is_logged(session: Session) -> None:
    first, second = put(session), put(session, tags=["b", "a", "b"])
    assert first.id != second.id
    assert (first.user, first.token, first.state) == ("ada", "t1", S.QUEUED)
    assert tags_of(session, [first.id, second.id]) == {second.id: ["a", "b"]}
    waiting = {row.id for row in queue_entries.waiting(session)}
    assert waiting == {first.id, second.id}
    assert queue_entries.holding(session) == []
    entries = session.exec(select(AuditEntry)).all()
    assert [entry.subject for entry in entries] == [first.id, second.id]


@on_both
def test_of_two_that_start_one_entry_one_is_told_no(store: Engine, session: Session) -> None:
    row = put(session)
    with Session(store) as other:
        same = other.get(QueueEntry, row.id)
        assert same is not None
        assert queue_entries.move(other, same, S.RUNNING, changes={"attempt": 1, "job": "j-1"})
        other.commit()
    assert not queue_entries.move(session, row, S.RUNNING, changes={"attempt": 1, "job": "j-2"})
    session.commit()
    assert (row.state, row.job) == (S.RUNNING, "j-1")
    assert [each.id for each in queue_entries.holding(session)] == [row.id]


def test_a_change_meant_for_an_earlier_attempt_does_nothing(
    store: Engine, session: Session
) -> None:
    """It ran, died and runs again; who saw the first attempt says that it has completed."""
    row = put(session)
    queue_entries.move(session, row, S.RUNNING, changes={"attempt": 1})
    session.commit()
    with Session(store) as other:
        same = other.get(QueueEntry, row.id)
        assert same is not None
        queue_entries.move(other, same, S.QUEUED)
        queue_entries.move(other, same, S.RUNNING, changes={"attempt": 2})
        other.commit()
    assert not queue_entries.move(session, row, S.COMPLETED)
    assert (row.state, row.attempt) == (S.RUNNING, 2)


@pytest.mark.parametrize(
    ("walk", "asked", "after"),
    [
        ([], "stop", S.STOPPED),
        ([], "kill", S.KILLED),
        ([S.RUNNING], "stop", S.STOPPING),
        ([S.RUNNING], "kill", S.KILLING),
        ([S.RUNNING, S.PREEMPTING], "stop", S.STOPPING),
        ([S.RUNNING, S.STOPPING], "kill", S.KILLING),
        ([S.STOPPED], "resume", S.QUEUED),
        ([S.RUNNING, S.ERROR], "resume", S.QUEUED),
    ],
)
def test_what_people_may_ask(
    session: Session, walk: list[ExperimentState], asked: str, after: ExperimentState
) -> None:
    row = put(session)
    for state in walk:
        assert queue_entries.move(session, row, state)
    queue_entries.ask(session, row, asked, by=ADA)
    session.commit()
    assert row.state is after
    assert (row.finished is not None) == (after in queue_entries.ENDED)


@on_both
def test_a_lease_has_one_holder_until_its_time_has_passed(store: Engine) -> None:
    with Session(store) as a, Session(store) as b:
        assert leases.take(a, "queue", "a", at="T0", until="T5")
        assert not leases.take(b, "queue", "b", at="T4", until="T9")
        assert leases.take(a, "queue", "a", at="T4", until="T8")  # renewed
        assert leases.take(b, "queue", "b", at="T8", until="U2")  # its time has passed
        assert not leases.take(a, "queue", "a", at="T9", until="U3")
        leases.release(a, "queue", "a", at="T9")  # not its own any more
        assert not leases.take(a, "queue", "a", at="T9", until="U3")
        leases.release(b, "queue", "b", at="T9")
        assert leases.take(a, "queue", "a", at="T9", until="U3")
