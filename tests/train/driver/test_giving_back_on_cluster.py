"""An elastic run under a queue: 3 → 1 → 3 workers, for another job has a higher priority."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train
from sqlalchemy import Engine
from sqlmodel import Session

from govray.governance.submission.register_forms import Isolation
from govray.platform.queue.job import Job, JobState
from govray.platform.queue.outcome import run_name
from govray.platform.queue.queue_order import SlotLimits
from govray.platform.queue.reconcile import Reconciler
from govray.platform.queue.run_limits import RunLimits
from govray.platform.store import database, queue_entries
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import connect, parse_url
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.run_folder import events
from govray.train.run_folder.clock import instant, now
from govray.train.state import snapshot
from tests.support import loops
from tests.support.deployment import Deployment
from tests.support.runs_apart import RELATIVE, apart, ran
from tests.support.solo import run_here

pytestmark = [pytest.mark.story, pytest.mark.usefixtures("cluster")]

STEPS = 300
"""Of a fifth of a second each while others wait: time for a slow machine to change workers."""
PATIENCE_S = 180


class Jobs:
    """What the queue starts: the run in a thread, and an actor. Nothing of it may be stopped."""

    isolation: Isolation = "sharedCluster"

    def __init__(self, train: Callable[[str], Path], other: Any) -> None:
        self._train = train
        self._other = other
        self._pool = ThreadPoolExecutor(1)
        self._jobs: dict[str, Job] = {}
        self.training: Future[Path]
        self.actor: Any = None

    def start(self, row: QueueEntry) -> None:
        assert row.job is not None
        assert row.job not in self._jobs
        self._jobs[row.job] = Job(name=row.job, submission=row.id, state=JobState.RUNNING)
        if row.least is not None:
            self.training = self._pool.submit(self._train, run_name(row))
        else:
            self.actor = self._other.remote()

    def look(self, job: str) -> Job | None:
        return self._jobs.get(job)

    def stop(self, job: str) -> None:
        raise AssertionError(f"{job} is preempted")

    def running(self) -> list[Job]:
        return []

    def end(self, job: str) -> None:
        self._jobs[job] = replace(self._jobs[job], state=JobState.SUCCEEDED, code=0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = connect(parse_url(f"sqlite:///{tmp_path / 'queue.db'}"))
    database.to_head(engine)
    yield engine
    engine.dispose()


def test_it_gives_workers_back_to_another_job_and_ends_as_if_nothing_had_been(
    engine: Engine, deployment: Deployment, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"

    def trainer(name: str, workers: list[int] | int) -> GovernedTrainer:
        return _trainer(deployment, tmp_path, name, workers, slow)

    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        fixed = trainer("fixed", 1).train()
    slow.touch()
    other = ray.remote(num_cpus=1)(_Other)
    jobs = Jobs(lambda name: trainer(name, [1, 3]).train(), other)
    queue = Reconciler(
        engine,
        jobs,
        SlotLimits(pools={"default": 3}),
        holder="test",
        clock=instant,
        run_limits=RunLimits(tmp_path / "runs"),
    )
    low = _submit(engine, "elastic", slots=3, least=1)
    queue.once()
    run = tmp_path / "runs" / run_name(_row(engine, low))
    try:
        _until(jobs, lambda: len(_worlds(run)) > 8)
        probe = other.remote()
        assert ray.wait([probe.there.remote()], timeout=1)[0] == []  # Ray has no CPU for it
        ray.kill(probe)
        high = _submit(engine, "urgent", slots=2, priority=5)
        _until(jobs, lambda: bool(queue.once() and jobs.actor))
        assert ray.get(jobs.actor.there.remote(), timeout=30)
        assert _row(engine, low).why == "it gave back 2 of 3 slots to a higher priority"
        _until(jobs, lambda: Counter(_worlds(run))[1] > 3)
        assert _row(engine, high).state is ExperimentState.RUNNING
        ray.kill(jobs.actor)
        jobs.end(str(_row(engine, high).job))
        _until(jobs, lambda: bool(queue.once()) and _worlds(run)[-1] == 3)
    finally:
        slow.unlink()
        assert jobs.training.result(timeout=PATIENCE_S) == run
    worlds = _worlds(run)
    assert [worlds[0], *(b for a, b in pairwise(worlds) if a != b)] == [3, 1, 3]
    assert [step for step, _ in ran(tmp_path, run.name)] == list(range(STEPS))
    for ours, theirs in zip(_leaves(run), _leaves(fixed), strict=True):
        assert ours | {"worldSize": 1} == theirs
    [(ended, last), *_], [(_, like), (_, earlier), *_] = (
        [*snapshot.committed_folders(each)] for each in (run, fixed)
    )
    assert ended == STEPS
    assert apart(last, like) <= RELATIVE
    assert apart(last, earlier) > 10 * RELATIVE  # the control: a step makes more of a difference
    log = events.read(run)
    assert [each.most for each in log if isinstance(each, events.WorkersLimited)] == [1, 3]
    assert not any(isinstance(each, events.Failed) for each in log)


class _Other:
    def there(self) -> bool:
        return True


def _trainer(
    deployment: Deployment, folder: Path, name: str, workers: list[int] | int, slow: Path
) -> GovernedTrainer:
    trainer = GovernedTrainer(
        parse_experiment(
            deployment.experiment(
                max_steps=STEPS,
                optimizer={"lr": 1e-3},
                checkpoint={"every_steps": 20, "save_trial_latest": 2},
                resources={"num_workers": workers, "cpus_per_worker": 0.5},
            ),
            where="test",
        )
    )
    return replace(
        trainer,
        train_loop_per_worker=loops.paced,
        train_loop_config={
            **trainer.loop_config,
            "slow": str(slow),
            "ran": str(folder / f"{name}.ran.jsonl"),
        },
        scaling_config=replace(trainer.scaling, elastic_resize_monitor_interval_s=2.0),
        run_config=ray.train.RunConfig(name=name, storage_path=str(folder / "runs")),
    )


def _submit(engine: Engine, name: str, **more: Any) -> str:
    by = ChangedBy(user="ada", at=now(), token=None)
    with Session(engine) as session:
        row = queue_entries.submit(
            session, kind="train", name=name, project="a", config="", by=by, **more
        )
        session.commit()
        return row.id


def _row(engine: Engine, id: str) -> QueueEntry:
    with Session(engine, expire_on_commit=False) as session:
        return session.get_one(QueueEntry, id)


def _until(jobs: Jobs, condition: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not condition():
        if jobs.training.done() or time.monotonic() - began > PATIENCE_S:
            raise TimeoutError
        time.sleep(0.1)


def _leaves(run: Path) -> list[dict[str, Any]]:
    """The ledger's leaves of steps, as the write-ahead file has them now."""
    try:
        lines = (run / "ledger.ahead.jsonl").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [leaf for leaf in map(json.loads, lines) if "worldSize" in leaf]


def _worlds(run: Path) -> list[int]:
    return [leaf["worldSize"] for leaf in _leaves(run)]
