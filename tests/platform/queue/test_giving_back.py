"""An elastic run gives workers back to a higher priority, and nothing starts before it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import Engine

from govray.governance.submission.worker_cap import ANSWER, LARGEST, REQUEST, read_cap, write_cap
from govray.platform.queue.giving_way import Holding
from govray.platform.queue.job import JobState
from govray.platform.queue.outcome import run_name
from govray.platform.queue.queue_order import ProjectLimit, SlotLimits
from govray.platform.queue.reconcile import GIVE_BACK_S, LEASE_S, QueuePass, Reconciler
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from tests.support.queued import Crashed, Crashing, Queued, called, emptied

S = ExperimentState
TO = "slots to a higher priority"


class Elastic(Queued):
    """A queue whose one elastic run has a folder, and workers of which it knows itself."""

    workers = 4

    def put_elastic(self) -> str:
        self.elastic = self.put(slots=4, least=1)
        return self.elastic

    @property
    def run(self) -> Path:
        assert self.storage is not None
        return self.storage / run_name(self.row(self.elastic))

    def told(self) -> tuple[int, int] | None:
        """What stands in its folder: which word it is, and how many workers it allows."""
        cap = read_cap(self.run, REQUEST)
        return (cap.number, cap.most) if cap else None

    def obey(self) -> None:
        """As its controller does: have as many workers as it is allowed, and answer."""
        cap = read_cap(self.run, REQUEST)
        self.workers = min(4, cap.most) if cap else 4
        if cap is not None:
            write_cap(self.run, ANSWER, cap)


@pytest.fixture
def queue(store: Engine, tmp_path: Path) -> Elastic:
    queue = Elastic(store, storage=tmp_path)
    queue.put_elastic()
    queue.passed()
    queue.run.mkdir()
    return queue


def shown(queue: Elastic) -> tuple[int | None, str | None]:
    row = queue.row(queue.elastic)
    return row.held, row.why


def test_it_gives_back_what_is_needed_goes_on_and_has_it_again(queue: Elastic) -> None:
    high = queue.put(priority=5)
    queue.passed()
    assert (queue.state(queue.elastic), queue.state(high)) == (S.RUNNING, S.QUEUED)
    assert (queue.told(), shown(queue)) == ((1, 2), (4, f"it gives back 2 of 4 {TO}"))
    # As long as its workers commit, nothing moves and nothing new is said.
    assert queue.passed().moves == []
    assert (queue.told(), queue.state(high)) == ((1, 2), S.QUEUED)
    queue.obey()
    queue.passed()
    assert (queue.state(high), shown(queue)) == (S.RUNNING, (2, f"it gave back 2 of 4 {TO}"))
    assert queue.row(queue.elastic).gives_to == high
    assert queue.cluster.told == set()
    queue.cluster.end(queue.job(high), JobState.SUCCEEDED, code=0)
    assert [each.why for each in queue.passed().moves] == [None, "it has all its slots again"]
    assert (queue.told(), shown(queue)) == ((2, 4), (None, None))
    assert queue.passed().moves == []
    queue.until_rest()
    assert queue.row(queue.elastic).attempt == 1


def test_one_that_does_not_answer_in_time_is_preempted_whole(queue: Elastic) -> None:
    high = queue.put(priority=5)
    queue.passed()
    queue.wait(GIVE_BACK_S - 4)
    queue.passed()
    assert queue.state(queue.elastic) is S.RUNNING
    queue.wait(4)
    queue.passed()
    assert queue.state(queue.elastic) is S.PREEMPTING
    queue.cluster.tick()
    queue.passed()
    assert (queue.state(high), queue.state(queue.elastic)) == (S.RUNNING, S.QUEUED)
    assert (queue.row(queue.elastic).cap, queue.row(queue.elastic).held) == (None, None)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b'{"most":2, "number":1}',
        b'{"most":2,"number":2}',
        b'{"most":3,"number":1}',
        b'{"most":2,"number":1,"more":1}',
        b'{"most":2,"number":1}' + b" " * LARGEST,
    ],
)
def test_only_its_own_answer_frees_slots(queue: Elastic, answer: bytes) -> None:
    high = queue.put(priority=5)
    queue.passed()
    (queue.run / ANSWER).write_bytes(answer)
    queue.passed()
    assert queue.state(high) is S.QUEUED
    (queue.run / ANSWER).write_bytes(b'{"most":2,"number":1}')
    queue.passed()
    assert queue.state(high) is S.RUNNING


def test_a_stopped_one_frees_what_it_held_and_its_projects_limit_counts_that(
    store: Engine, tmp_path: Path
) -> None:
    limits = SlotLimits(pools={"default": 4}, others=ProjectLimit(max_slots=4))
    queue = Elastic(store, storage=tmp_path, limits=limits)
    queue.put_elastic()
    queue.passed()
    queue.run.mkdir()
    high = queue.put(priority=5)
    queue.passed()
    queue.obey()
    queue.passed()
    assert queue.state(high) is S.RUNNING  # of the same project, whose limit is 4
    queue.ask(queue.elastic, "stop")
    queue.passed()
    assert queue.row(queue.elastic).held == 2
    queue.cluster.tick()
    queue.passed()
    row = queue.row(queue.elastic)
    assert (row.state, row.held, row.cap, row.gives_to) == (S.STOPPED, None, None, None)
    assert queue.told() == (1, 4)  # whoever goes on with the run by hand has all workers


def story(
    queue: Elastic,
    crash: Callable[[], None],
    made: type[Reconciler] = Reconciler,
    after_pass: Callable[[QueuePass], None] = lambda done: None,
) -> int:
    """A run gives two of four workers back, and has them again; how often the process crashed.

    The run obeys at every other turn. What it has and what others have is never above four.
    """
    current, crashes, high = queue.reconciler(made), 0, ""
    for turn in range(24):
        queue.wait(5)
        try:
            with called(queue, crash):
                done = current.once()
            after_pass(done)
        except Crashed:
            crashes += 1
            current = queue.reconciler(made)
            queue.wait(LEASE_S)
        jobs = {job.submission for job in queue.cluster.live()}
        if queue.elastic in jobs:
            queue.run.mkdir(exist_ok=True)
        assert queue.workers + 2 * (high in jobs) <= 4, "more workers than slots"
        if turn % 2:
            queue.obey()
        if turn == 1:
            high = queue.put(priority=9)
        if high in jobs and turn > 6:
            queue.cluster.end(queue.job(high), JobState.SUCCEEDED, code=0)
        if turn > 8 and queue.row(queue.elastic).cap is None and queue.workers == 4:
            assert high
            return crashes
    raise AssertionError(queue.states())


def fresh(store: Engine, storage: Path) -> Elastic:
    queue = Elastic(emptied(store), storage=storage)
    queue.run_limits = Crashing(storage)
    queue.put_elastic()
    return queue


def test_a_crash_at_any_point_is_repaired_and_no_slot_is_given_twice(
    store: Engine, tmp_path: Path
) -> None:
    points: list[None] = []
    of_moves: list[int] = []
    before = 0

    def passed(done: QueuePass) -> None:
        nonlocal before
        if done.moves:  # passes that move nothing are all alike
            of_moves.extend(range(before, len(points)))
        before = len(points)

    assert story(fresh(store, tmp_path), lambda: points.append(None), after_pass=passed) == 0
    assert len(of_moves) > 40
    for point in of_moves[::3]:  # each kind of call, before and after its effect
        queue, calls = fresh(store, tmp_path), count()

        def crash(point: int = point, calls: Iterator[int] = calls) -> None:
            if next(calls) == point:
                raise Crashed

        assert story(queue, crash) == 1, f"at point {point}"
        row = queue.row(queue.elastic)
        assert (row.attempt, row.held, row.why) == (1, None, None), f"at point {point}"
        assert queue.told() == (2, 4)


def test_who_counts_slots_as_free_when_they_are_asked_for_starts_too_much(
    store: Engine, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="more workers than slots"):
        story(fresh(store, tmp_path), lambda: None, Hasty)


class Hasty(Reconciler):
    """Takes what it has asked for as given."""

    def _holding(self, row: QueueEntry, *, wanted: bool) -> Holding:
        found = super()._holding(row, wanted=wanted)
        return replace(found, slots=found.keeps)
