"""A queue whose time the test turns, over a cluster in memory. Its process may end at any point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, delete, event
from sqlmodel import Session, col, select

from govray.governance.formats.document import format_time
from govray.platform.queue.queue_order import SlotLimits
from govray.platform.queue.reconcile import QueuePass, Reconciler, Retries
from govray.platform.queue.run_limits import RunLimits
from govray.platform.store import queue_entries
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import Lease, PoolRow, QueueEntry
from tests.support.pretended_cluster import PretendedCluster


@dataclass
class Queued:
    """The store, the cluster and the clock; `reconciler` makes a process that works it off.

    With a ``storage`` elastic runs below it can be told to give workers back.
    """

    engine: Engine
    limits: SlotLimits = field(default_factory=lambda: SlotLimits(pools={"default": 4}))
    retries: Retries = field(default_factory=lambda: Retries(most=2))
    cluster: PretendedCluster = field(default_factory=PretendedCluster)
    at: datetime = datetime(2026, 11, 24, 9, tzinfo=UTC)
    commits: set[str] = field(default_factory=set)
    storage: Path | None = None
    shared: str | None = None
    gpus: float = 0.0

    def __post_init__(self) -> None:
        self.run_limits: RunLimits | None = RunLimits(self.storage) if self.storage else None
        self._processes = 0
        self.process = self.reconciler()

    def reconciler(self, made: type[Reconciler] = Reconciler) -> Reconciler:
        self._processes += 1
        return made(
            self.engine,
            self.cluster,
            self.limits,
            holder=f"process-{self._processes}",
            clock=lambda: self.at,
            committed=lambda row, since: row.id in self.commits,
            run_limits=self.run_limits,
            retries=self.retries,
            shared=self.shared,
            gpus=dict.fromkeys(self.limits.pools, self.gpus),
        )

    def put(self, **more: Any) -> str:
        """Submit; returns the id."""
        self.wait(1)
        settings = {"kind": "train", "name": "gpt", "project": "a", "config": "a: 1", "slots": 2}
        by = ChangedBy(user=more.pop("user", "ada"), at=format_time(self.at), token=None)
        with Session(self.engine) as session:
            row = queue_entries.submit(session, **{**settings, **more}, by=by)
            session.commit()
            return row.id

    def ask(self, id: str, what: str) -> None:
        by = ChangedBy(user="ada", at=format_time(self.at), token=None)
        with Session(self.engine) as session:
            queue_entries.ask(session, session.get_one(QueueEntry, id), what, by=by)
            session.commit()

    def wait(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)

    def passed(self) -> QueuePass:
        """One pass, two seconds after the one before."""
        self.wait(2)
        return self.process.once()

    def row(self, id: str) -> QueueEntry:
        with Session(self.engine, expire_on_commit=False) as session:
            return session.get_one(QueueEntry, id)

    def job(self, id: str) -> str:
        """The cluster's name of an entry's last job."""
        job = self.row(id).job
        assert job is not None
        return job

    def states(self) -> list[str]:
        with Session(self.engine) as session:
            rows = session.exec(select(QueueEntry).order_by(col(QueueEntry.submitted)))
            return [str(row.state) for row in rows]

    def state(self, id: str) -> ExperimentState:
        return self.row(id).state

    def until_rest(self, *, most: int = 60) -> None:
        """Passes and ticks until every entry has ended."""
        for _ in range(most):
            self.passed()
            self.cluster.tick()
            with Session(self.engine) as session:
                left = session.exec(
                    select(QueueEntry).where(col(QueueEntry.state).not_in(queue_entries.ENDED))
                ).first()
            if left is None:
                return
            self.wait(10)
        raise AssertionError(f"no rest: {self.states()}")


class Crashed(BaseException):
    """The process is gone; nothing of it goes on."""


class Crashing(RunLimits):
    """Calls before and after it has told a run something."""

    at_call: Callable[[], None] = staticmethod(lambda: None)

    def tell(self, row: QueueEntry) -> None:
        self.at_call()
        super().tell(row)
        self.at_call()


@contextmanager
def called(queue: Queued, call: Callable[[], None]) -> Iterator[None]:
    """Meanwhile ``call`` is called at every call of the cluster, each word to a run, and before
    every commit."""

    def at_commit(connection: object) -> None:
        call()

    telling = [each for each in (queue.run_limits,) if isinstance(each, Crashing)]
    for each in (queue.cluster, *telling):
        each.at_call = call
    event.listen(queue.engine, "commit", at_commit)
    try:
        yield
    finally:
        event.remove(queue.engine, "commit", at_commit)
        for each in (queue.cluster, *telling):
            each.at_call = lambda: None


def emptied(store: Engine) -> Engine:
    """The store, without entries and who works them off."""
    with Session(store) as session:
        for table in (QueueEntry, Lease, PoolRow):
            session.exec(delete(table))
        session.commit()
    return store
