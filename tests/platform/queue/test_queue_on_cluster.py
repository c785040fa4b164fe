"""The queue over a real head."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

import govray
from govray.governance.record.ledger import Leaf, read_leaves
from govray.governance.submission.code_archive import archive_folder
from govray.platform.queue.job import Cluster
from govray.platform.queue.placement import Slot
from govray.platform.queue.queue_order import SlotLimits
from govray.platform.queue.ray_jobs import RayJobs
from govray.platform.queue.reconcile import Reconciler, Retries
from govray.platform.store import queue_entries
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from govray.platform.store.run_owners import run_name
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from govray.platform.tasks.endpoint import task_folder
from govray.platform.tasks.kept_files import OUTPUT
from govray.train.checkpoint import commit_folder
from govray.train.run_folder import events
from govray.train.run_folder.clock import instant, now
from govray.train.state import snapshot
from tests.support.attesting import attestor_of
from tests.support.forked_workers import Forked
from tests.support.kubernetes_server import kubernetes
from tests.support.on_kubernetes import TENANTS, jobs_on, pods
from tests.support.people import serve
from tests.support.queue_world import queue_world
from tests.support.ray_nodes import ray_nodes
from tests.support.tree import ROOT

pytestmark = pytest.mark.timeout(900)

S = ExperimentState
LINES = 6
PATIENCE_S = 600.0
PAGE = {"accept": "text/html"}
STEPS = 6

JOB = """
import fcntl, json, signal, sys, time
from pathlib import Path

config, facts = (json.loads(Path(sys.argv[at]).read_text()) for at in (2, 4))
log = Path(config["work"]) / facts["id"]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
with log.open("a+") as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    done = len(log.read_text().splitlines())
    while done < config["lines"] or (log.parent / "hold").exists():
        if stopped:
            sys.exit(75)
        time.sleep(0.2)
        if done < config["lines"]:
            file.write(f"{facts['user']} {done}\\n")
            file.flush()
            done += 1
"""

MAKES = """
import os
print(6 * 7, "of ada")
open(os.environ["GOVRAY_TASK_FILES"] + "/made", "w").write("x")
"""
COMMANDS = {
    "good": [sys.executable, "-c", MAKES],
    "bad": [sys.executable, "-c", "raise SystemExit(3)"],
}
"""Tasks of the kind ``command``, by the real ``jobs/task.py``."""


@pytest.mark.parametrize("on", ["Ray Jobs", pytest.param("Kubernetes", marks=pytest.mark.story)])
def test_from_the_queue_to_a_verified_model(tmp_path: Path, forked: Forked, on: str) -> None:
    with ExitStack() as open_:
        world = open_.enter_context(queue_world(tmp_path, forked, steps=STEPS))
        here, storage, register, told = world.here, world.storage, world.register, world.told
        world.slow.touch()
        service = open_.enter_context(serve(world.url, attestor=world.door))
        tick: Callable[[], object] = lambda: None  # noqa: E731
        cluster = world.cluster
        if on == "Kubernetes":  # whose pods are processes here, of one cluster that is there
            run_pod = open_.enter_context(pods(tmp_path / "pods", RAY_ADDRESS=world.nodes.address))
            server = open_.enter_context(kubernetes(run=run_pod))
            tick, one = server.tick, {"default": Slot(cpus=1, memory=1 << 30)}
            tenants = {"default": TENANTS["a"]}
            cluster = jobs_on(server, storage, register=told, slots=one, tenants=tenants)
        reconciler = world.reconciler(service.engine, cluster)
        assert reconciler.once().unreachable is None  # the service knows the pools from now on
        answer = service.client("engineer").post("/v1/experiments", json=world.asked)
        assert answer.status_code == 201, answer.text
        id = answer.json()["id"]
        assert register.accepted(id).user == "engineer"

        def row() -> QueueEntry:
            with Session(service.engine, expire_on_commit=False) as session:
                return session.get_one(QueueEntry, id)

        def until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not condition():
                assert time.monotonic() < deadline, row().why
                assert row().state is not S.ERROR, row().why
                reconciler.once()
                tick()
                time.sleep(0.2)

        until(lambda: bool(row().job))
        run = storage / run_name(row())
        until(lambda: snapshot.latest(run) is not None)
        os.kill(drivers(run)[0], 9)
        until(lambda: row().failures == 1)
        world.slow.unlink()
        until(lambda: row().state is S.COMPLETED)
        assert not (run / "model").exists()
        attestor = attestor_of(here, register, storage, tmp_path)
        [done] = attestor.once()
        until(lambda: row().attested is not None)
        page = service.client("engineer").get(f"/experiments/{id}", headers=PAGE).text
        assert "ATTESTED" in page

        assert (row().attested, row().not_attested) == ("ATTESTED", None)
        assert row().attempt == 2
        assert len(drivers(run)) == 2
        data = (run / "ledger.ahead.jsonl").read_bytes()
        leaves = [each for each in read_leaves(data) if isinstance(each, Leaf)]
        assert [each.step for each in leaves] == list(range(STEPS))  # each once
        assert {each.world_size for each in leaves} == {2}
        chain = register.posts(id, run.name)
        assert {each.attempt for each in chain} == {1, 2}
        assert [each.kind for each in chain[-2:]] == ["finished", "ended"]
        newest = snapshot.latest(run)
        assert newest is not None
        assert chain[-1].step == newest[1] == STEPS
        assert chain[-1].commit == commit_folder.open_commit(newest[0]).digest
        assert done.state == "ATTESTED", done.why
        model = govray.verify(attestor.settings.models / run.name, trust_root=here.root)
        assert model.digest == done.digest
        stated = model.attestation.execution
        assert stated.attempts == 2
        assert (stated.submission, stated.user, stated.project) == (id, "engineer", "default")
        assert stated.isolation == cluster.isolation
        assert cluster.isolation == ("project" if on == "Kubernetes" else "sharedCluster")


def drivers(run: Path) -> list[int]:
    """The processes that were a run's driver, one after the other."""
    return [each.pid for each in events.read(run) if isinstance(each, events.DriverStarted)]


@pytest.mark.story
def test_a_queue_outlives_its_head(tmp_path: Path, forked: Forked) -> None:
    work, storage, code = (tmp_path / name for name in ("work", "runs", "code"))
    for folder in (work, storage, code / "jobs"):
        folder.mkdir(parents=True)
    (code / "jobs" / "train.py").write_text(JOB)
    (code / "jobs" / "task.py").write_bytes((ROOT / "jobs" / "task.py").read_bytes())
    (work / "hold").touch()
    archive = archive_folder(code, storage)
    engine = open_store(f"sqlite:///{tmp_path / 'queue.db'}", create=True)
    config = json.dumps({"work": str(work), "lines": LINES})

    def put(name: str, priority: int = 0, kind: str = "train", config: str = config) -> str:
        with Session(engine) as session:
            row = queue_entries.submit(
                session,
                kind=kind,
                name=name,
                project="research",
                config=config,
                slots=1,
                by=ChangedBy(user="ada", at=now(), token=None),
                priority=priority,
                archive=archive,
            )
            session.commit()
            return row.id

    def row(id: str) -> QueueEntry:
        with Session(engine) as session:
            return session.get_one(QueueEntry, id)

    def lines(id: str) -> list[str]:
        path = work / id
        return path.read_text().splitlines() if path.exists() else []

    with ray_nodes(forked, workers=0, cpus=0) as nodes:
        cluster = RayJobs(nodes.dashboard, storage)
        reconciler = Reconciler(
            engine,
            cluster,
            SlotLimits(pools={"default": 2}),
            holder="the test",
            clock=instant,
            retries=Retries(first_s=0.5),
        )

        def until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not condition():
                assert time.monotonic() < deadline, [row(id) for id in everyone]
                reconciler.once()
                time.sleep(0.5)

        one, two, three = everyone = [put(name) for name in ("one", "two", "three")]
        until(lambda: len([id for id in everyone if lines(id)]) == 2)
        begun = [id for id in everyone if lines(id)]

        urgent = put("urgent", priority=9)
        everyone.append(urgent)
        until(lambda: bool(lines(urgent)))
        [gave_way] = [id for id in begun if row(id).state is S.QUEUED]
        assert row(gave_way).why == "it gave way to a higher priority"
        assert row(gave_way).failures == 0

        known = {job.name for job in cluster.running()}
        assert known == {row(id).job for id in everyone if row(id).state is S.RUNNING}
        nodes.head.held.set()
        nodes.head.kill()
        before = {id: row(id).state for id in everyone}
        assert reconciler.once().unreachable is not None
        assert {id: row(id).state for id in everyone} == before
        (work / "hold").unlink()
        nodes.head.held.clear()
        until(lambda: all(row(id).state is S.COMPLETED for id in everyone))
        assert nodes.head.starts >= 2

        commands = [
            put(name, kind="command", config=json.dumps({"kind": "command", "argv": argv}))
            for name, argv in COMMANDS.items()
        ]
        until(lambda: all(row(id).state in queue_entries.ENDED for id in commands))

    good, bad = map(row, commands)
    assert (good.state, good.attempt) == (S.COMPLETED, 1)
    assert (bad.state, bad.attempt) == (S.ERROR, 1)
    assert "3" in str(bad.why)
    kept = [task_folder(storage, id) / "files" for id in commands]
    assert [(each / OUTPUT).read_text() for each in kept] == ["42 of ada\n", ""]
    assert (kept[0] / "made").read_text() == "x"

    for id in (one, two, three, urgent):
        assert lines(id) == [f"ada {number}" for number in range(LINES)]
    engine.dispose()


class Ended(BaseException):
    """The process of the queue is gone."""


class Dies:
    """A back end whose asker ends at every third start or stop, before it or after it in turn."""

    def __init__(self, cluster: Cluster) -> None:
        self.isolation = cluster.isolation
        self.look, self.running = cluster.look, cluster.running
        self._cluster, self._calls, self.deaths = cluster, 0, 0

    def start(self, row: QueueEntry) -> None:
        self._told(lambda: self._cluster.start(row))

    def stop(self, job: str) -> None:
        self._told(lambda: self._cluster.stop(job))

    def _told(self, call: Callable[[], None]) -> None:
        self._calls += 1
        if self._calls % 6 != 3:
            call()
        if self._calls % 3 == 0:
            self.deaths += 1
            raise Ended


class Noting(Reconciler):
    """A reconciler that notes each state that it has written."""

    written: list[tuple[str, str]]

    def _move(self, session: Session, row: QueueEntry, *words: Any) -> bool:
        moved = super()._move(session, row, *words)
        if moved:
            self.written.append((row.name, str(row.state)))
        return moved


EXPECTED = {
    "one": "RUNNING STOPPING STOPPED QUEUED RUNNING COMPLETED",
    "two": "RUNNING PREEMPTING QUEUED RUNNING COMPLETED",
    "urgent": "RUNNING COMPLETED",
    "refuses": "RUNNING ERROR",
}


@pytest.mark.story
@pytest.mark.parametrize("on", ["Ray Jobs", "Kubernetes"])
def test_both_back_ends_have_the_same_states_and_nothing_twice(
    tmp_path: Path, forked: Forked, on: str
) -> None:
    work, storage, code = (tmp_path / name for name in ("work", "runs", "code"))
    for folder in (work, storage, code / "jobs"):
        folder.mkdir(parents=True)
    refuses = "print('govray: no such corpus'); raise SystemExit(2)"
    (code / "jobs" / "train.py").write_text(JOB)
    (code / "jobs" / "tune.py").write_text(refuses)
    (work / "hold").touch()
    archive = archive_folder(code, storage)
    engine = open_store(f"sqlite:///{tmp_path / 'queue.db'}", create=True)
    written: list[tuple[str, str]] = []
    ids: dict[str, str] = {}
    by = ChangedBy(user="ada", at=now(), token=None)

    def put(name: str, priority: int = 0, kind: str = "train") -> None:
        config = json.dumps({"work": str(work), "lines": LINES})
        with Session(engine) as session:
            row = queue_entries.submit(
                session, kind=kind, name=name, project="a", config=config, slots=1,
                by=ChangedBy(user="ada", at=now(), token=None), priority=priority, archive=archive,
            )  # fmt: skip
            session.commit()
            ids[name] = row.id

    def row(name: str) -> QueueEntry:
        with Session(engine, expire_on_commit=False) as session:
            return session.get_one(QueueEntry, ids[name])

    def ask(name: str, what: str, after: S) -> None:
        with Session(engine) as session:
            queue_entries.ask(session, session.get_one(QueueEntry, ids[name]), what, by=by)
            session.commit()
        written.append((name, str(after)))

    def lines(name: str) -> list[str]:
        path = work / ids[name]
        return path.read_text().splitlines() if path.exists() else []

    with ExitStack() as open_:
        tick: Callable[[], object] = lambda: None  # noqa: E731
        if on == "Kubernetes":
            run_pod = open_.enter_context(pods(tmp_path / "pods"))
            server = open_.enter_context(kubernetes(run=run_pod))
            tick = server.tick
            cluster: Cluster = jobs_on(server, storage)
        else:
            nodes = open_.enter_context(ray_nodes(forked, workers=0, cpus=0))
            cluster = RayJobs(nodes.dashboard, storage)
        dies = Dies(cluster)

        def process() -> Noting:
            made = Noting(
                engine,
                dies,
                SlotLimits(pools={"default": 2}),
                holder="the test",
                clock=instant,
                retries=Retries(first_s=0.5),
            )
            made.written = written
            return made

        processes = [process()]

        def until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not condition():
                assert time.monotonic() < deadline, written
                try:
                    processes[-1].once()
                except Ended:
                    processes.append(process())
                tick()
                time.sleep(0.2)

        put("one")
        until(lambda: bool(lines("one")))
        put("two")
        until(lambda: bool(lines("two")))
        put("urgent", priority=9)
        until(lambda: bool(lines("urgent")))  # the newest start gives way
        ask("one", "stop", S.STOPPING)
        until(lambda: row("one").state is S.STOPPED)
        put("refuses", kind="tune")
        ask("one", "resume", S.QUEUED)
        (work / "hold").unlink()
        until(lambda: all(row(name).state in queue_entries.ENDED for name in ids))

    assert dies.deaths >= 2
    assert {
        name: " ".join(state for its, state in written if its == name) for name in ids
    } == EXPECTED
    for name in ("one", "two", "urgent"):
        assert lines(name) == [f"ada {number}" for number in range(LINES)]  # each once
    assert {name: row(name).attempt for name in ids} == {
        "one": 2, "two": 2, "urgent": 1, "refuses": 1,
    }  # fmt: skip
    assert row("refuses").why == "no such corpus"
    assert all(row(name).failures == 0 for name in ids)
    engine.dispose()
