"""A pass over the queue: what starts, gives way, comes back and ends. A crash loses nothing."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from govray.governance.formats.document import format_time
from govray.platform.queue import reconcile
from govray.platform.queue.job import AttemptGone, Job, JobState
from govray.platform.queue.outcome import outcome
from govray.platform.queue.queue_order import ProjectLimit, SlotLimits
from govray.platform.queue.reconcile import LEASE_S, START_GRACE_S, SWEEP_S, QueuePass, Reconciler
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from govray.platform.store.usage import usage
from govray.platform.tasks.task_file import FINITE, KINDS, SHOWN
from tests.support.databases import on_both
from tests.support.pretended_cluster import RUNS_FOR
from tests.support.queued import Crashed, Queued, called, emptied

S, J = ExperimentState, JobState
TOLD = "govray: it was told to end\nTask finished"


@pytest.fixture
def queue(store: Engine) -> Queued:
    return Queued(store)


@on_both
def test_what_fits_starts_and_ends_and_the_next_follows(queue: Queued) -> None:
    one, two, three = queue.put(), queue.put(), queue.put()
    queue.passed()
    assert [queue.state(id) for id in (one, two, three)] == [S.RUNNING, S.RUNNING, S.QUEUED]
    assert queue.row(one).attempt == 1
    assert [queue.row(id).position for id in (one, two, three)] == [None, None, 1]
    queue.until_rest()
    assert queue.states() == ["COMPLETED"] * 3
    assert queue.cluster.done == {one: RUNS_FOR, two: RUNS_FOR, three: RUNS_FOR}
    assert queue.row(three).position is None
    assert queue.row(three).finished is not None


@pytest.mark.parametrize("guessed", [False, True])
def test_a_job_that_lay_there_before_is_not_taken_for_the_queue_s(
    queue: Queued, monkeypatch: pytest.MonkeyPatch, guessed: bool
) -> None:
    """Any job of a plain Ray cluster sees ids, and may submit another under the next name."""
    id = queue.put()
    if guessed:  # the control
        monkeypatch.setattr(reconcile, "job_name", lambda id, attempt: f"{id}-{attempt}")
    queue.cluster.jobs[f"{id}-1"] = Job(name=f"{id}-1", submission="", state=J.SUCCEEDED, code=0)

    queue.passed()
    queue.passed()

    assert queue.state(id) is (S.COMPLETED if guessed else S.RUNNING)
    assert (id in {job.submission for job in queue.cluster.live()}) != guessed


@pytest.mark.parametrize("shared", [None, "keys/operator.pem: jobs can read the key"])
def test_where_jobs_reach_what_signs_no_second_user_s_job_starts(
    store: Engine, shared: str | None
) -> None:
    queue = Queued(store, shared=shared)
    own = queue.put()
    assert queue.passed().unreachable is None
    other = queue.put(user="mallory", project="b")

    done = queue.passed()

    starts = (S.RUNNING, None) if shared is None else (S.QUEUED, shared)
    assert (queue.state(other), done.unreachable) == starts
    queue.ask(own, "stop")
    queue.passed()
    queue.cluster.tick()
    queue.passed()
    assert queue.state(own) is S.STOPPED  # what runs is followed


def test_a_pass_writes_down_where_a_job_runs(queue: Queued) -> None:
    id = queue.put()
    queue.passed()
    job = queue.row(id).job
    assert job is not None
    for node in ("10.0.0.7", "10.0.0.8"):
        queue.cluster.jobs[job] = replace(queue.cluster.jobs[job], node=node)
        queue.passed()
        assert queue.row(id).node == node
    queue.cluster.jobs[job] = replace(queue.cluster.jobs[job], state=J.FAILED)
    queue.passed()
    queue.wait(60)
    queue.passed()
    assert (queue.row(id).attempt, queue.row(id).node) == (2, None)  # another attempt's


@on_both
@pytest.mark.parametrize("kind", ["command", "notebook", "tensorboard", "train"])
def test_the_gpus_of_a_task_are_counted(store: Engine, kind: str) -> None:
    """Those of a run are its trials', whose event logs tell."""
    queue = Queued(store, gpus=2.0)
    id = queue.put(kind=kind, slots=1)

    def hours() -> tuple[float, float]:
        with Session(store) as session:
            [found] = usage(session, at=format_time(queue.at))
        return found.worker_hours, found.accelerator_hours

    assert hours() == (0, 0)
    queue.passed()
    queue.wait(1800)
    counted = (0.0, 0.0) if kind == "train" else (0.5, 1.0)
    assert hours() == counted  # it runs
    job = queue.job(id)
    queue.cluster.jobs[job] = replace(queue.cluster.jobs[job], state=J.FAILED, code=-9)
    queue.wait(-2)
    queue.passed()  # its machine is lost, and the next attempt adds to what is counted
    assert (queue.row(id).attempt, hours()) == (2, counted)
    queue.wait(5398)
    queue.ask(id, "kill")
    queue.passed()
    queue.cluster.tick()
    queue.wait(-2)
    queue.passed()
    queue.wait(3600)  # what has ended is counted to its end
    assert queue.state(id) is S.KILLED
    assert hours() == tuple(4 * each for each in counted)
    with Session(store) as session:
        assert usage(session, at=format_time(queue.at), since="2027-01-01T00:00:00Z") == ()


def test_a_higher_priority_preempts_and_who_gave_way_goes_on(queue: Queued) -> None:
    low = [queue.put(), queue.put()]
    queue.passed()
    queue.cluster.tick()
    high = queue.put(priority=5)
    queue.passed()
    assert [queue.state(id) for id in low] == [S.RUNNING, S.PREEMPTING]
    assert queue.cluster.told == {queue.job(low[1])}
    queue.cluster.tick()
    queue.passed()
    assert (queue.state(high), queue.state(low[1])) == (S.RUNNING, S.QUEUED)
    assert queue.row(low[1]).why == "it gave way to a higher priority"
    assert queue.row(low[1]).failures == 0
    queue.until_rest()
    assert queue.states() == ["COMPLETED"] * 3
    assert queue.row(low[1]).attempt == 2
    assert queue.cluster.done[low[1]] == RUNS_FOR


@pytest.mark.parametrize(
    ("state", "job", "after", "failure"),
    [
        (S.RUNNING, {"state": J.SUCCEEDED, "code": 0}, S.COMPLETED, False),
        (S.PREEMPTING, {"state": J.SUCCEEDED, "code": 0}, S.COMPLETED, False),
        (S.RUNNING, {"state": J.FAILED, "code": -9}, S.QUEUED, True),
        (S.RUNNING, {"state": J.FAILED, "code": 137}, S.QUEUED, True),
        (S.RUNNING, {"state": J.FAILED, "code": 69, "message": "govray: no node"}, S.QUEUED, True),
        (S.RUNNING, {"state": J.FAILED, "code": 1, "message": "Traceback"}, S.QUEUED, True),
        (S.RUNNING, {"state": J.FAILED, "message": "Job supervisor actor died"}, S.QUEUED, True),
        (S.RUNNING, {"state": J.FAILED, "code": 75}, S.QUEUED, True),
        (S.RUNNING, {"state": J.STOPPED}, S.STOPPED, False),
        (S.RUNNING, {"state": J.FAILED, "code": 1, "message": "govray: no"}, S.ERROR, False),
        (S.RUNNING, {"state": J.FAILED, "code": 2, "message": "x\ngovray: no"}, S.ERROR, False),
        (S.RUNNING, {"state": J.FAILED, "code": 3, "message": "govray: no"}, S.ERROR, False),
        (S.PREEMPTING, {"state": J.FAILED, "code": 75}, S.QUEUED, False),
        (S.PREEMPTING, {"state": J.STOPPED}, S.QUEUED, False),
        (S.PREEMPTING, {"state": J.FAILED, "code": -9}, S.QUEUED, False),
        (S.PREEMPTING, {"state": J.FAILED, "code": 1, "message": "govray: no"}, S.ERROR, False),
        (S.STOPPING, {"state": J.FAILED, "code": 75}, S.STOPPED, False),
        (S.STOPPING, {"state": J.STOPPED}, S.STOPPED, False),
        (S.STOPPING, {"state": J.FAILED, "code": -9}, S.STOPPED, False),
        (S.KILLING, {"state": J.STOPPED}, S.KILLED, False),
        (S.KILLING, {"state": J.FAILED, "code": 1, "message": "govray: no"}, S.KILLED, False),
    ],
)
def test_what_follows_an_end(
    state: ExperimentState, job: dict[str, object], after: ExperimentState, failure: bool
) -> None:
    found = outcome(state, Job(name="s-1", submission="s", **job))  # type: ignore[arg-type]
    assert (found.after, found.failure) == (after, failure)
    assert found.after is not S.ERROR or found.why == "no"


@pytest.mark.parametrize(
    ("kinds", "state", "job", "after", "why"),
    [
        (SHOWN, S.RUNNING, {"state": J.SUCCEEDED, "code": 0}, S.COMPLETED, "nobody used it"),
        (FINITE, S.RUNNING, {"state": J.SUCCEEDED, "code": 0}, S.COMPLETED, None),
        (KINDS, S.RUNNING, {"state": J.FAILED, "code": 75, "message": TOLD}, S.QUEUED, "told"),
        (KINDS, S.PREEMPTING, {"state": J.STOPPED}, S.QUEUED, "it gave way"),
        (KINDS, S.STOPPING, {"state": J.STOPPED}, S.STOPPED, None),
        (KINDS, S.RUNNING, {"state": J.FAILED, "code": 2, "message": "govray: no"}, S.ERROR, "no"),
        (KINDS, S.RUNNING, {"state": J.FAILED, "code": 137}, S.QUEUED, "signal 9"),
        (KINDS, S.RUNNING, {"state": J.FAILED, "message": "node lost"}, S.QUEUED, "node lost"),
        (KINDS, S.RUNNING, {"state": J.FAILED, "code": 69, "message": TOLD}, S.QUEUED, "69"),
        # A program's own codes are final, also those that mean more where govray says them.
        *(
            (FINITE, S.RUNNING, {"state": J.FAILED, "code": c, "message": "x"}, S.ERROR, f"{c}: x")
            for c in (1, 2, 5, 69, 75, 128, 255)
        ),
        (FINITE, S.PREEMPTING, {"state": J.FAILED, "code": 5}, S.ERROR, "code 5"),
        (FINITE, S.KILLING, {"state": J.FAILED, "code": 5}, S.KILLED, None),
        (SHOWN, S.RUNNING, {"state": J.FAILED, "code": 1, "message": "Traceback"}, S.QUEUED, "1"),
    ],
)
def test_what_follows_the_end_of_a_task(
    kinds: tuple[str, ...],
    state: ExperimentState,
    job: dict[str, Any],
    after: ExperimentState,
    why: str | None,
) -> None:
    for kind in kinds:
        found = outcome(state, Job(name="s-1", submission="s", **job), kind)
        assert found.after is after, (kind, found)
        assert why in found.why if why and found.why else found.why is why, (kind, found)


def test_a_dead_driver_is_started_again_after_a_while(queue: Queued) -> None:
    id = queue.put()
    queue.passed()
    queue.cluster.end(queue.job(id), J.FAILED, code=-9)
    queue.passed()
    row = queue.row(id)
    assert (row.state, row.failures, row.attempt) == (S.QUEUED, 1, 1)
    assert row.why == "its driver was ended by signal 9"
    queue.passed()
    assert queue.state(id) is S.QUEUED  # not due yet
    queue.wait(queue.retries.first_s)
    queue.passed()
    assert (queue.state(id), queue.row(id).attempt) == (S.RUNNING, 2)


def test_who_says_again_and_again_that_it_was_told_to_stop_ends(queue: Queued) -> None:
    id, getting_on = queue.put(), queue.put()
    queue.commits.add(getting_on)

    def told() -> None:
        for job in queue.cluster.live():
            queue.cluster.end(job.name, J.FAILED, code=75)

    queue.passed()
    told()
    queue.passed()
    row = queue.row(id)
    assert (row.state, row.failures, row.attempt) == (S.QUEUED, 1, 1)  # and waits
    # The control: with a commit it is believed, and goes on at once.
    assert (queue.state(getting_on), queue.row(getting_on).attempt) == (S.RUNNING, 2)
    for _ in range(queue.retries.most):
        queue.wait(1000)
        queue.passed()
        told()
        queue.passed()
    assert queue.state(id) is S.ERROR
    assert queue.row(id).why == (
        "3 tries ended without a new commit; its driver was told to stop, not by the queue"
    )
    assert queue.row(getting_on).failures == 0


def test_stop_kill_and_resume(queue: Queued) -> None:
    stopped, killed = queue.put(), queue.put()
    queue.passed()
    queue.ask(stopped, "stop")
    queue.ask(killed, "kill")
    queue.passed()
    assert queue.cluster.told == {queue.job(stopped), queue.job(killed)}
    queue.cluster.tick()
    queue.passed()
    assert queue.states() == ["STOPPED", "KILLED"]
    queue.ask(stopped, "resume")
    queue.until_rest()
    assert (queue.state(stopped), queue.row(stopped).attempt) == (S.COMPLETED, 2)


def test_while_no_head_answers_nothing_moves_and_a_head_without_jobs_gets_them_again(
    queue: Queued,
) -> None:
    one, two, three = queue.put(), queue.put(), queue.put()
    queue.passed()
    queue.cluster.tick()
    queue.ask(two, "stop")
    queue.cluster.die()
    for _ in range(3):
        queue.wait(START_GRACE_S)
        assert queue.passed().unreachable == "the head: nothing answers"
    assert queue.states() == ["RUNNING", "STOPPING", "QUEUED"]
    queue.cluster.down = False
    queue.passed()
    assert queue.states() == ["RUNNING", "STOPPED", "RUNNING"]
    row = queue.row(one)
    assert (row.attempt, row.failures) == (2, 0)
    queue.until_rest()
    assert queue.states() == ["COMPLETED", "STOPPED", "COMPLETED"]
    assert queue.cluster.done[one] == RUNS_FOR
    assert queue.cluster.done[three] == RUNS_FOR


@on_both
def test_only_the_holder_of_the_lease_makes_passes(queue: Queued) -> None:
    id = queue.put()
    assert queue.passed().holder
    other = queue.reconciler()
    queue.cluster.end(queue.job(id), J.SUCCEEDED, code=0)
    assert not other.once().holder
    assert queue.state(id) is S.RUNNING
    queue.wait(LEASE_S + 1)  # the first one died
    assert other.once().holder
    assert queue.state(id) is S.COMPLETED
    assert not queue.process.once().holder
    other.release()
    assert queue.passed().holder


def test_a_job_that_nobody_follows_is_stopped_and_somebody_else_s_is_not(queue: Queued) -> None:
    id = queue.put()
    queue.passed()
    for name, submission in ((f"{id}-0", id), ("s-other-1", "s-other")):
        queue.cluster.jobs[name] = Job(name=name, submission=submission, state=J.RUNNING)
    assert queue.passed().stray == []  # not so soon after the last look
    queue.wait(SWEEP_S)
    assert queue.passed().stray == [f"{id}-0"]
    assert queue.cluster.told == {f"{id}-0"}


def scenario(engine: Engine) -> Queued:
    """Four slots, two projects, one of them with a limit; the fifth preempts."""
    limits = SlotLimits(pools={"default": 4}, projects={"b": ProjectLimit(max_slots=2)})
    queue = Queued(engine, limits=limits)
    for project in ("a", "b", "a", "b"):
        queue.put(project=project)
    return queue


def story(queue: Queued, crash: Callable[[], None], made: type[Reconciler] = Reconciler) -> int:
    """Work it off, with a preemption, a dead driver and a dead head; returns how many crashed."""
    crashes = 0
    current = queue.reconciler(made)
    for turn in count():
        queue.wait(5)
        try:
            with called(queue, crash):
                current.once()
        except Crashed:
            crashes += 1
            current = queue.reconciler(made)
            queue.wait(LEASE_S)
        if turn == 1:
            queue.put(priority=9)
        live = queue.cluster.live()
        if turn == 2 and live:
            queue.cluster.end(live[0].name, J.FAILED, code=-9)
        if turn == 5:
            queue.cluster.die()
        if turn == 6:
            queue.cluster.down = False
        queue.cluster.tick()
        for submission in {job.submission for job in queue.cluster.live()}:
            of_it = [job for job in queue.cluster.live() if job.submission == submission]
            assert len(of_it) == 1, f"two jobs of one submission run: {of_it}"
        assert 2 * len(queue.cluster.live()) <= 4, "more runs than there are slots"
        if turn > 6 and set(queue.states()) == {"COMPLETED"}:
            return crashes
        assert turn < 80, queue.states()
    raise AssertionError


def test_a_crash_at_any_call_is_repaired_by_the_next_pass(store: Engine) -> None:
    """Before and after the effect of each call of the cluster, and before each commit."""
    points: list[None] = []
    assert story(scenario(store), lambda: points.append(None)) == 0
    assert len(points) > 40
    # Every third: passes repeat, so each kind of call has its turn, before and after its effect.
    for point in range(0, len(points), 3):
        queue = crashed_at(store, point)
        assert set(queue.cluster.done.values()) == {RUNS_FOR}, f"at point {point}"
        assert len(queue.cluster.done) == 5


def test_who_starts_first_and_writes_then_runs_one_submission_twice(store: Engine) -> None:
    """The control: the crash of the test above, at the first starts alone."""
    broken = []
    for point in range(12):
        try:
            crashed_at(store, point, Hasty)
        except AssertionError as error:
            broken.append(str(error))
    assert any("two jobs of one submission run" in each for each in broken)


class Hasty(Reconciler):
    """Asks the cluster first, under a name of the moment, and writes what it did after that.

    Nor does it look for jobs that nobody follows.
    """

    def _sweep(self, session: Session, done: QueuePass) -> None:
        """Nothing."""

    def _move(
        self,
        session: Session,
        row: QueueEntry,
        after: ExperimentState,
        changes: dict[str, Any],
        done: QueuePass,
    ) -> bool:
        if after is S.RUNNING:
            changes["job"] = row.job = f"{row.id}-{secrets.token_hex(4)}"
            self._cluster.start(row)
        return super()._move(session, row, after, changes, done)


def crashed_at(store: Engine, point: int, made: type[Reconciler] = Reconciler) -> Queued:
    """The queue at its end, after its process was ended at this point."""
    queue, calls = scenario(emptied(store)), count()

    def crash() -> None:
        if next(calls) == point:
            raise Crashed

    assert story(queue, crash, made) == 1
    return queue


def test_an_attempt_that_has_run_and_is_gone_is_followed_by_the_next(
    queue: Queued, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attestor's register knows that it has posted, and the cluster has lost its job."""
    start = queue.cluster.start

    def gone(row: QueueEntry) -> None:
        if row.attempt == 1:
            raise AttemptGone("attempt 1 has posted with another secret")
        start(row)

    monkeypatch.setattr(queue.cluster, "start", gone)
    one = queue.put()
    queue.passed()
    assert (queue.state(one), queue.row(one).failures) == (S.QUEUED, 0)
    queue.until_rest()
    assert (queue.state(one), queue.row(one).attempt) == (S.COMPLETED, 2)
