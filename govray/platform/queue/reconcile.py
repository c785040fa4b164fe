"""One pass over the queue: look at the cluster and the store, and move what follows.

A pass asks what is so, not what has happened. So it may be repeated, and any pass repairs what one
before left undone. Each move is a compare-and-set. Only what it succeeded for is told to the
cluster. A process that ends at any point leaves one of these:

start
    First RUNNING is written, with attempt + 1 and the job's name. Then the cluster is asked. If the
    process ends between, the next pass finds RUNNING without a job. It asks again under the same
    name, which no cluster starts twice.
start that is refused
    ERROR is written after the cluster's answer. Else the next pass asks again, and is refused.
preempt
    First PREEMPTING is written, then the job is told to stop. The next pass finds PREEMPTING with a
    job that runs, and tells it again. So it is, too, where the cluster itself took its place.
gift
    It is written, then the run is told. The next pass tells it again. The slots stay the entry's
    until its run has answered. One that takes longer than `GIVE_BACK_S` is preempted.
growth
    It is written, then the run is told. The next pass tells it again.
stop, kill
    A request writes STOPPING or KILLING. From there on it is as with preempt.
a job's end
    Nothing is told to the cluster. The next pass finds the same end, and writes the same state.
the head's death
    While nothing answers, nothing moves. When the head is back without the job, the entry is QUEUED
    again, and its next attempt has another name. The attestor's register may show first that the
    attempt has run.

A start that arrives late, after its entry has moved on, leaves a job that nobody follows. Such jobs
are looked for now and then, and told to stop. Until then the run's lock keeps two drivers apart.

Only the holder of a lease makes passes. Where two do so all the same, for a clock was wrong, the
compare-and-set lets one of them move each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Engine, update
from sqlmodel import Session, col

from govray.governance.formats.document import format_time, parse_time
from govray.platform.queue import gifts, queue_order
from govray.platform.queue.giving_way import Holding
from govray.platform.queue.job import (
    AttemptGone,
    Cluster,
    JobRefused,
    JobState,
    Unreachable,
    job_name,
)
from govray.platform.queue.outcome import Outcome, outcome, vanished
from govray.platform.queue.queue_order import SlotLimits, Waiting
from govray.platform.queue.run_limits import RunLimits
from govray.platform.store import leases, pools, queue_entries, usage
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import PoolRow, QueueEntry
from govray.platform.store.tenancy import project_limits

LEASE_S = 30.0
"""How long another process waits before it takes over from one that died."""

START_GRACE_S = 120.0
"""How long a start that was written and did not arrive is asked for again."""

GIVE_BACK_S = 120.0
"""How long an elastic run may take to give workers back, before it is preempted whole."""

SWEEP_S = 60.0
"""Between looks for jobs that nobody follows."""

ATTESTED_S = 5.0
"""Between questions to the attestor, about so many runs at most that have ended."""
_ASKED = 20

Decided = Callable[[QueueEntry], tuple[str, str | None] | None]
"""What an attestor has decided of an entry, and why; None while it is undecided."""


class Retries(BaseModel):
    """What becomes of jobs that end without being asked to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    most: int = Field(default=5, ge=0, le=1000, description="Deaths without a new commit.")
    first_s: float = Field(default=10.0, gt=0, le=86400, description="Seconds between two starts.")
    longest_s: float = Field(default=600.0, gt=0, le=86400, description="The most of them.")

    def wait(self, failures: int) -> timedelta:
        """How far the next start is from the last one at least."""
        if failures == 0:
            return timedelta(0)
        return timedelta(seconds=min(self.first_s * 2 ** min(failures - 1, 30), self.longest_s))


@dataclass(frozen=True)
class Move:
    id: str
    name: str
    before: ExperimentState
    after: ExperimentState
    why: str | None


@dataclass
class QueuePass:
    """What one pass did.

    Attributes:
        holder: Whether this process has the lease; without it a pass does nothing.
        unreachable: Why the cluster could not be asked, or nothing may start, if so. What holds
            slots then stays.
        stray: Jobs that nobody followed, and that were told to stop.
    """

    holder: bool = True
    moves: list[Move] = field(default_factory=list)
    unreachable: str | None = None
    stray: list[str] = field(default_factory=list)


class LostLease(Exception):
    """Another process has the lease by now."""


class Reconciler:
    """Works a queue off on one cluster.

    Args:
        holder: This process, by a name that no other has.
        clock: The time, without fractions of a second.
        committed: Whether a run of this entry has a commit that is newer than this time.
        run_limits: What tells elastic runs to give workers back. Without it all give way whole.
        labels: Of the nodes of each pool, for who submits to see.
        gpus: Of a slot of each pool.
        folder: Whether a run that brings no working directory gets one.
        decided: Asks the attestor, where there is one.
        shared: Why jobs of more than one user may not be started here, if so.
    """

    def __init__(
        self,
        engine: Engine,
        cluster: Cluster,
        limits: SlotLimits,
        *,
        holder: str,
        clock: Callable[[], datetime],
        committed: Callable[[QueueEntry, datetime], bool] = lambda row, since: False,
        run_limits: RunLimits | None = None,
        retries: Retries | None = None,
        labels: Mapping[str, Mapping[str, str]] | None = None,
        gpus: Mapping[str, float] | None = None,
        folder: bool = False,
        decided: Decided | None = None,
        shared: str | None = None,
    ) -> None:
        self._engine = engine
        self._cluster = cluster
        self._limits = limits
        self._holder = holder
        self._clock = clock
        self._committed = committed
        self._run_limits = run_limits
        self._retries = retries or Retries()
        self._labels = labels or {}
        self._gpus = gpus or {}
        self._folder = folder
        self._decided = decided
        self._shared = shared
        self._swept: datetime | None = None
        self._asked: datetime | None = None
        self._stated = False
        self._heard: frozenset[str] = frozenset()

    def once(self) -> QueuePass:
        """One pass. What it did, also where the cluster or the lease went away in the middle."""
        done = QueuePass()
        with Session(self._engine, expire_on_commit=False) as session:
            try:
                self._keep_lease(session)
                self._state_pools(session)
                limits = limits_now(session, self._limits)
                self._refuse(session, limits, done)
                for row in queue_entries.holding(session):
                    self._follow(session, row, done)
                self._sweep(session, done)
                self._ask_attestor(session)
                self._turn(session, limits, done)
            except Unreachable as error:
                session.rollback()
                done.unreachable = str(error)
            except LostLease:
                session.rollback()
                done.holder = False
        return done

    def submitted(self) -> bool:
        """Whether there is an entry that no pass has placed, and that was not there last time."""
        with Session(self._engine) as session:
            unplaced = queue_entries.unplaced(session)
        new, self._heard = unplaced - self._heard, unplaced
        return bool(new)

    def release(self) -> None:
        """Let another process take over at once."""
        with Session(self._engine) as session:
            leases.release(session, leases.RECONCILER, self._holder, at=self._now())

    def _keep_lease(self, session: Session) -> None:
        now = self._clock()
        until = format_time(now + timedelta(seconds=LEASE_S))
        if not leases.take(
            session, leases.RECONCILER, self._holder, at=format_time(now), until=until
        ):
            self._swept, self._stated = None, False
            raise LostLease

    def _state_pools(self, session: Session) -> None:
        if self._stated:
            return
        limits = self._limits
        stated = [
            PoolRow(
                name=name,
                slots=slots,
                labels=dict(self._labels.get(name, {})),
                gpus=self._gpus.get(name, 0.0),
                most={project: each.most(name) for project, each in limits.projects.items()},
                most_others=limits.others.most(name),
                folder=self._folder,
                isolation=self._cluster.isolation,
            )
            for name, slots in limits.pools.items()
        ]
        if pools.state(session, stated):
            session.commit()
        self._stated = True

    # What holds slots

    def _follow(self, session: Session, row: QueueEntry, done: QueuePass) -> None:
        """Move an entry on if its job has ended, and tell the job again what it was asked."""
        assert row.job is not None
        job = self._cluster.look(row.job)
        if job is None:
            if row.state is ExperimentState.RUNNING and not self._past(row.started, START_GRACE_S):
                self._start(session, row, done)
            else:
                self._end(session, row, vanished(row.state), done)
        elif job.ended:
            self._end(session, row, outcome(row.state, job, row.kind), done)
        elif row.state is not ExperimentState.RUNNING:
            self._keep_lease(session)
            self._cluster.stop(row.job)
        elif job.state is JobState.PREEMPTED:
            self._preempt(session, row, done)
        else:
            seen: dict[str, Any] = {"why": job.waits} if job.waits is not None else {}
            if job.node is not None:  # it waits no more
                seen = {"node": job.node, "why": None if row.node is None else row.why}
            if any(getattr(row, name) != value for name, value in seen.items()):
                queue_entries.resize(session, row, seen)
                session.commit()
            self._follow_gift(session, row, done)

    def _follow_gift(self, session: Session, row: QueueEntry, done: QueuePass) -> None:
        """Tell a run again how many workers it may have, and see whether it has given some back."""
        if self._run_limits is None:
            return
        self._run_limits.tell(row)
        if gifts.gives(row) and self._run_limits.given(row):
            self._resize(session, row, gifts.given(row), done)

    def _end(self, session: Session, row: QueueEntry, found: Outcome, done: QueuePass) -> None:
        changes: dict[str, Any] = {"why": found.why} | usage.spent(session, row, self._now())
        after = found.after
        if found.failure:
            assert row.started is not None
            progress = self._committed(row, parse_time(row.started))
            since = 0 if found.told else 1
            changes["failures"] = failures = since if progress else row.failures + 1
            if failures > self._retries.most:
                after = ExperimentState.ERROR
                changes["why"] = f"{failures} tries ended without a new commit; {found.why}"
        elif after is ExperimentState.COMPLETED:
            changes["failures"] = 0
        if after in queue_entries.ENDED:
            changes["finished"] = self._now()
        moved = self._move(session, row, after, changes, done)
        if moved and self._run_limits is not None:
            self._run_limits.tell(row)  # no limit outlasts the entry, whoever runs it next

    def _start(self, session: Session, row: QueueEntry, done: QueuePass) -> None:
        """Ask for the job of an entry that is RUNNING. May be repeated. One that does not arrive is
        no reason to leave the others alone."""
        self._keep_lease(session)
        if self._run_limits is not None:
            self._run_limits.tell(row)  # no limit of an earlier attempt is left
        try:
            self._cluster.start(row)
        except Unreachable as error:
            done.unreachable = str(error)
        except AttemptGone:
            self._end(session, row, vanished(row.state), done)
        except JobRefused as error:
            changes = {"why": str(error), "finished": self._now()}
            self._move(session, row, ExperimentState.ERROR, changes, done)

    def _preempt(self, session: Session, row: QueueEntry, done: QueuePass) -> None:
        if self._move(session, row, ExperimentState.PREEMPTING, {}, done):
            assert row.job is not None
            self._keep_lease(session)
            self._cluster.stop(row.job)

    def _sweep(self, session: Session, done: QueuePass) -> None:
        """Stop jobs that no entry follows: of one that has ended or waits, or an older attempt's.
        Those of submissions that this store does not know are somebody else's."""
        now = self._clock()
        if self._swept is not None and now - self._swept < timedelta(seconds=SWEEP_S):
            return
        for job in self._cluster.running():
            row = session.get(QueueEntry, job.submission, populate_existing=True)
            if row is not None and (row.state not in queue_entries.HELD or row.job != job.name):
                self._keep_lease(session)
                self._cluster.stop(job.name)
                done.stray.append(job.name)
        self._swept = now

    def _ask_attestor(self, session: Session) -> None:
        """Write down what the attestor has decided. Where it doesn't answer, it is asked again."""
        now = self._clock()
        soon = self._asked is not None and now - self._asked < timedelta(seconds=ATTESTED_S)
        if self._decided is None or soon:
            return
        self._asked = now
        for row in queue_entries.undecided(session, RUN_KINDS, _ASKED):
            with suppress(Unreachable):
                if (found := self._decided(row)) is not None:
                    self._keep_lease(session)
                    row.attested, row.not_attested = found
                    session.add(row)
                    session.commit()

    # What waits

    def _refuse(self, session: Session, limits: SlotLimits, done: QueuePass) -> None:
        """End what can never start, also while no cluster answers."""
        for row in queue_entries.waiting(session):
            why = queue_order.never(row.pool, row.project, row.slots, limits)
            if why is not None:
                changes = {"why": why, "finished": self._now()}
                self._move(session, row, ExperimentState.ERROR, changes, done)

    def _turn(self, session: Session, limits: SlotLimits, done: QueuePass) -> None:
        """Start and make room as the order says, and write down who is where in the line."""
        session.rollback()  # a transaction of its own sees what was asked meanwhile
        rows = {row.id: row for row in queue_entries.waiting(session)}
        if self._shared and len(queue_entries.users(session)) > 1:
            done.unreachable = self._shared
            return
        held = {row.id: row for row in queue_entries.holding(session)}
        waits = [self._waiting(row) for row in rows.values()]
        holds = [self._holding(row, wanted=bool(waits)) for row in held.values()]
        decision = queue_order.decide(waits, holds, limits)
        self._write_positions(session, rows, decision)
        for id in decision.preempt:
            self._preempt(session, held[id], done)
        self._give_and_take(session, held, decision, done)
        for id in decision.start:
            row = rows[id]
            attempt = row.attempt + 1
            changes = {
                "attempt": attempt,
                "job": job_name(row.id, attempt),
                "started": self._now(),
                "why": None,
                "node": None,
            }
            if self._move(session, row, ExperimentState.RUNNING, changes, done):
                unreachable, done.unreachable = done.unreachable, None
                self._start(session, row, done)
                if done.unreachable is not None:
                    return  # the next would not arrive either
                done.unreachable = unreachable

    def _give_and_take(
        self,
        session: Session,
        held: dict[str, QueueEntry],
        decision: queue_order.QueueDecision,
        done: QueuePass,
    ) -> None:
        """Let running entries give slots back, and others have theirs again."""
        changes = {
            **{
                id: gifts.asked(held[id], each, at=self._now())
                for id, each in decision.shrink.items()
            },
            **{id: gifts.given_again(held[id], each) for id, each in decision.grow.items()},
        }
        for id, each in changes.items():
            self._keep_lease(session)
            if self._resize(session, held[id], each, done) and self._run_limits is not None:
                self._run_limits.tell(held[id])

    def _holding(self, row: QueueEntry, *, wanted: bool) -> Holding:
        """An entry that holds slots. Whether its run can be told is looked at if any waits."""
        told = self._run_limits
        elastic = wanted and row.state is ExperimentState.RUNNING and row.least is not None
        return gifts.holding(
            row,
            shrinks=elastic and told is not None and told.reaches(row),
            late=gifts.gives(row) and self._past(row.capped, GIVE_BACK_S),
        )

    def _waiting(self, row: QueueEntry) -> Waiting:
        since = parse_time(row.started) if row.started else None
        ready = since is None or self._clock() - since >= self._retries.wait(row.failures)
        return waiting(row, ready=ready)

    def _write_positions(
        self, session: Session, rows: dict[str, QueueEntry], decision: queue_order.QueueDecision
    ) -> None:
        for row, place in _places(rows, decision):
            if row.position != place:
                session.connection().execute(
                    update(QueueEntry)
                    .where(
                        col(QueueEntry.id) == row.id,
                        col(QueueEntry.state) == ExperimentState.QUEUED,
                    )
                    .values(position=place)
                )
        session.commit()

    # Both

    def _move(
        self,
        session: Session,
        row: QueueEntry,
        after: ExperimentState,
        changes: dict[str, Any],
        done: QueuePass,
    ) -> bool:
        """Move and commit; False if another changed the entry meanwhile."""
        before = row.state
        moved = queue_entries.move(session, row, after, changes=changes)
        session.commit()
        if moved:
            done.moves.append(Move(row.id, row.name, before, after, row.why))
        return moved

    def _resize(
        self, session: Session, row: QueueEntry, changes: dict[str, Any], done: QueuePass
    ) -> bool:
        """Change what an entry holds or is to keep, and commit; False if another changed it."""
        resized = queue_entries.resize(session, row, changes)
        session.commit()
        if resized:
            why = row.why or "it has all its slots again"
            done.moves.append(Move(row.id, row.name, row.state, row.state, why))
        return resized

    def _past(self, at: str | None, seconds: float) -> bool:
        return at is not None and self._clock() - parse_time(at) > timedelta(seconds=seconds)

    def _now(self) -> str:
        return format_time(self._clock())


def waiting(row: QueueEntry, *, ready: bool = True) -> Waiting:
    """An entry that waits, as the order sees it."""
    return Waiting(
        id=row.id,
        project=row.project,
        pool=row.pool,
        priority=row.priority,
        slots=row.slots,
        submitted=(row.submitted, row.id),
        ready=ready,
    )


def limits_now(session: Session, stated: SlotLimits) -> SlotLimits:
    """The limits that are ``stated`` for the queue, with what projects' own settings say now.

    Of two numbers of slots the lower counts. The share of a project that is stated for the queue
    stays; of others it is their own.
    """
    projects = dict(stated.projects)
    for name, (share, most) in project_limits(session).items():
        limit = projects.get(name) or replace(stated.others, share=share)
        if most is not None:
            limit = replace(
                limit,
                max_slots=min(most, limit.max_slots if limit.max_slots is not None else most),
                in_pool={pool: min(most, slots) for pool, slots in limit.in_pool.items()},
            )
        projects[name] = limit
    return replace(stated, projects=projects)


def _places(
    rows: dict[str, QueueEntry], decision: queue_order.QueueDecision
) -> Iterator[tuple[QueueEntry, int]]:
    for line in decision.order.values():
        for place, id in enumerate(line, 1):
            yield rows[id], place
