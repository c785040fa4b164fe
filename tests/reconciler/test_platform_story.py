"""Two users of two projects, eight runs and a search, four slots: all of it on a real cluster.

The head and two nodes are processes of this machine, started again when they end. The service takes
submissions over HTTP into PostgreSQL, and two processes stand by to work the queue off.

A higher priority preempts, a driver is killed, then the head with all that it knew, and with it the
process that held the lease. What must hold: all end, nothing is lost, nothing is trained twice, and
each model says whose it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from ray.job_submission import JobSubmissionClient
from sqlmodel import Session, col, select

import govray
from govray.governance.record.ledger import Leaf, read_leaves
from govray.governance.submission.code_archive import archive_folder
from govray.service import tokens
from govray.store import submissions
from govray.store.database import open_store
from govray.store.run_owners import run_name
from govray.store.states import SubmissionState
from govray.store.tables import Lease, Submission
from govray.train.run_folder import events
from tests.support import slow_while
from tests.support.collector import Collector, Kept, collecting
from tests.support.databases import Server
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked
from tests.support.process import COMMAND, serving
from tests.support.ray_nodes import RayNodes, ray_nodes
from tests.support.tree import ROOT

pytestmark = [pytest.mark.story, pytest.mark.timeout(2100)]

S = SubmissionState
STEPS = 16
EVERY = 4
SLOTS = 4
PATIENCE_S = 1500.0


class Platform:
    """The store, the deployment and the cluster of the story."""

    def __init__(
        self, folder: Path, store: str, nodes: RayNodes, service: str, collector: Collector
    ) -> None:
        self.folder, self.nodes, self.service = folder, nodes, service
        self.collector = collector
        self.here = Deployment(folder / "deployment")
        self.runs = self.here.folder / "runs"
        self.runs.mkdir()
        self.engine = open_store(store)
        code = folder / "code"
        (code / "jobs").mkdir(parents=True)
        for name in ("train.py", "tune.py"):
            (code / "jobs" / name).write_bytes((ROOT / "jobs" / name).read_bytes())
        self.archive = archive_folder(code, self.runs)
        self.queue = folder / "queue.yaml"
        self.queue.write_text(
            yaml.safe_dump(
                {
                    "address": nodes.dashboard,
                    "storage": str(self.runs),
                    "store": store,
                    "pools": {"default": {"slots": SLOTS}},
                    "projects": {"research": {"share": 1.0}, "evaluation": {"max_slots": 2}},
                    "retries": {"first_s": 1.0},
                }
            )
        )
        self.tokens = {}
        with Session(self.engine) as session:
            for user in ("ada", "bob"):
                self.tokens[user] = tokens.new(
                    session, user, role="engineer", scopes=("write",), at=datetime.now(UTC)
                )
            session.commit()
        self.began = time.monotonic()

    def experiment(self, **changes: Any) -> str:
        value = self.here.experiment(
            entrypoint=f"{slow_while.__name__}:GPT",
            resources={"num_workers": 1, "cpus_per_worker": 0.5},
            max_steps=STEPS,
            checkpoint={"every_steps": EVERY},
            **changes,
        )
        return yaml.safe_dump(value)

    def submit(self, name: str, user: str, project: str, *, priority: int = 0) -> str:
        return self._post(user, self.experiment(name=name), project=project, priority=priority)

    def search(self, name: str, user: str, project: str) -> str:
        section = {
            "searcher": "grid",
            "metric": "loss",
            "goal": "min",
            "space": {"optimizer.lr": {"choice": [1e-3, 1e-2]}},
            "max_trials": 2,
            "max_concurrent_trials": 2,
        }
        return self._post(user, self.experiment(name=name, search=section), project=project)

    def _post(self, user: str, file: str, **more: Any) -> str:
        """Submit over HTTP, as the user; returns the submission's id."""
        answer = httpx.post(
            f"{self.service}/v1/experiments",
            headers={"Authorization": f"Bearer {self.tokens[user]}"},
            json={"file": file, "archive": self.archive, **more},
            timeout=60,
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def rows(self) -> dict[str, Submission]:
        with Session(self.engine, expire_on_commit=False) as session:
            rows = session.exec(select(Submission).order_by(col(Submission.submitted))).all()
            held = sum(row.slots for row in rows if row.state in submissions.HELD)
            assert held <= SLOTS
            limited = [row for row in rows if row.project == "evaluation"]
            assert sum(row.slots for row in limited if row.state in submissions.HELD) <= 2
            return {row.id: row for row in rows}

    def until(self, condition: Callable[[dict[str, Submission]], bool], what: str) -> None:
        while not condition(rows := self.rows()):
            bad = [row for row in rows.values() if row.state is S.ERROR]
            if bad or time.monotonic() - self.began > PATIENCE_S:
                raise TimeoutError(f"waited for {what}: {self.told(rows)}")
            time.sleep(0.3)
        print(f"{time.monotonic() - self.began:6.1f} s  {what}: {self.told(rows)}", flush=True)

    def told(self, rows: dict[str, Submission]) -> str:
        return "; ".join(
            f"{row.name} {row.state} {row.attempt} {row.why or ''}".strip() for row in rows.values()
        )

    def run_of(self, id: str) -> Path:
        return self.runs / run_name(self.rows()[id])

    def steps(self, id: str) -> int:
        """Steps that a run has done, by its write-ahead file as it is now."""
        try:
            lines = (self.run_of(id) / "ledger.ahead.jsonl").read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return 0
        return len(lines)

    def driver(self, id: str) -> int:
        started = [e for e in events.read(self.run_of(id)) if isinstance(e, events.DriverStarted)]
        return started[-1].pid

    @contextmanager
    def reconciler(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, "queue", "run", str(self.queue)],
                env=os.environ | {"RAY_ADDRESS": "127.0.0.1:1"},  # of some other cluster
                stdout=log,
                stderr=log,
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def holder(self) -> int:
        """The process that has the lease."""
        with Session(self.engine) as session:
            lease = session.get_one(Lease, "reconciler")
            return int(lease.holder.split("-")[-2])

    def jobs(self) -> dict[str, dict[str, str]]:
        """What Ray's dashboard says: job → metadata."""
        listed = JobSubmissionClient(self.nodes.dashboard).list_jobs()
        return {
            job.submission_id: dict(job.metadata or {})
            for job in listed
            if job.submission_id is not None
        }


@pytest.fixture
def platform(
    tmp_path: Path, postgres: Server, forked: Forked, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Platform]:
    monkeypatch.setenv(slow_while.FOLDER, str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "slow").touch()
    store = postgres.new("made")
    with (
        collecting(monkeypatch) as collector,
        ray_nodes(forked, workers=2, cpus=8) as nodes,
        serving(tmp_path, "--store", store) as (_, address),
    ):
        made = Platform(tmp_path, store, nodes, address, collector)
        yield made
        made.engine.dispose()


def test_all_end_nothing_is_lost_and_nothing_is_trained_twice(platform: Platform) -> None:
    ada = {name: platform.submit(name, "ada", "research") for name in ("a1", "a2", "a3", "a4")}
    bob = {name: platform.submit(name, "bob", "evaluation") for name in ("b1", "b2", "b3")}
    search = platform.search("s1", "ada", "research")
    everyone = [*ada.values(), *bob.values(), search]
    with ExitStack() as stack:
        processes = [stack.enter_context(platform.reconciler(f"queue-{i}")) for i in range(2)]
        jobs = act(platform, ada, bob, everyone, processes)
        platform.until(
            lambda rows: {row.state for row in rows.values()} == {S.COMPLETED}, "the end"
        )
        jobs |= platform.jobs()
    judge(platform, everyone, search, jobs)


def act(
    platform: Platform,
    ada: dict[str, str],
    bob: dict[str, str],
    everyone: list[str],
    processes: list[subprocess.Popen[bytes]],
) -> dict[str, dict[str, str]]:
    """A preemption, a dead driver, a dead head; returns the jobs that Ray knew before its death."""

    def at_work(*ids: str) -> Callable[[dict[str, Submission]], bool]:
        return lambda rows: all(
            rows[id].state is S.RUNNING and platform.steps(id) >= 2 for id in ids
        )

    # Order: two of each project, for both have equal shares.
    platform.until(lambda rows: len(held(rows)) == SLOTS, "four start")
    first = held(platform.rows())
    assert Counter(platform.rows()[id].project for id in first) == {"research": 2, "evaluation": 2}
    platform.until(at_work(*first), "two of each project are at work")
    places = [row.position for row in platform.rows().values() if row.position]
    assert sorted(places) == [1, 2, 3, 4]

    # Preemption: the newest start of the lowest priority gives way, and comes back.
    urgent = platform.submit("urgent", "ada", "research", priority=10)
    everyone.append(urgent)
    platform.until(
        lambda rows: (
            rows[urgent].state is S.RUNNING
            and any(row.attempt and row.state is S.QUEUED for row in rows.values())
        ),
        "one has given way to the urgent one",
    )
    [gave_way] = [row for row in platform.rows().values() if row.attempt and row.state is S.QUEUED]
    assert gave_way.id in first
    assert gave_way.why == "it gave way to a higher priority"

    # A dead driver.
    rows = platform.rows()
    victim = next(id for id in first if rows[id].state is S.RUNNING)
    os.kill(platform.driver(victim), 9)
    platform.until(lambda rows: rows[victim].failures == 1, "the dead driver is seen")

    # A dead head, and with it the process that worked the queue off.
    platform.until(
        lambda rows: (
            sum(row.state is S.RUNNING and platform.steps(id) > 0 for id, row in rows.items()) >= 2
            and rows[victim].attempt == 2
        ),
        "some at work",
    )
    before = platform.jobs()
    platform.nodes.head.kill()
    next(each for each in processes if each.pid == platform.holder()).kill()
    lost = {id: platform.rows()[id].attempt for id in held(platform.rows())}
    assert lost
    (platform.folder / "slow").unlink()
    platform.until(
        lambda rows: all(
            rows[id].attempt > attempt or rows[id].state is S.COMPLETED
            for id, attempt in lost.items()
        ),
        "what the head took comes back",
    )
    assert platform.nodes.head.starts >= 2
    return before


def held(rows: dict[str, Submission]) -> list[str]:
    return [id for id, row in rows.items() if row.state in submissions.HELD]


def judge(
    platform: Platform, everyone: list[str], search: str, jobs: dict[str, dict[str, str]]
) -> None:
    rows = platform.rows()
    assert len(rows) == len(everyone) == 9
    # One run for each submission, and no other.
    folders = {path.parents[1] for path in platform.runs.glob("*/record/run.json")}
    plain = [id for id in everyone if id != search]
    assert folders == {platform.run_of(id) for id in plain}
    for id in plain:
        check_run(platform, platform.run_of(id), rows[id], id)
    trials = [path.parents[1] for path in platform.run_of(search).glob("*/record/run.json")]
    assert len(trials) == 2
    models = [trial for trial in trials if (trial / "model").is_dir()]
    assert models
    for trial in trials:
        steps = Counter(leaf.step for leaf in leaves(trial))
        assert set(steps.values()) == {1}
    for trial in models:
        model = govray.verify(trial / "model", trust_root=platform.here.root)
        assert model.attestation.run.submission is not None
        assert model.attestation.run.submission.id == search
    traced(platform.collector.spans, rows, search)
    # Ray's dashboard showed each job, and whose it is.
    for id, row in rows.items():
        assert row.job in jobs
        assert jobs[row.job] == {
            "govray.submission": id,
            "govray.user": row.user,
            "govray.project": row.project,
        }


def traced(spans: list[Kept], rows: dict[str, Submission], search: str) -> None:
    """One trace leads from each request to the steps of its run, or of its search's trials."""
    known = {span.id: span for span in spans}
    requests = {}
    for submission in (span for span in spans if span.name == "submission"):
        request = known[submission.parent]
        assert request.name == "POST /v1/experiments"
        requests[submission.attributes["govray.submission"]] = request
    assert requests.keys() == rows.keys()
    for id, row in rows.items():
        below = [span for span in spans if span.trace == requests[id].trace]
        runs = [span for span in below if span.name == "run"]
        assert {known[run.parent].name for run in runs} == {"submission"}
        of = {run.attributes["govray.run"] for run in runs}
        assert len(of) == (2 if id == search else 1)
        finished = {
            run.attributes["govray.run"]
            for run in runs
            if run.attributes["govray.outcome"] == "finished"
        }
        assert finished == of
        steps = [span for span in below if span.name == "steps"]
        # A driver that is killed takes its span along, so its steps lie below one that nobody has.
        # Where it had done them all, the attempt that ended has none.
        lost = {each.parent for each in steps} - known.keys()
        assert len(lost) < row.attempt
        assert {known[each.parent].name for each in steps if each.parent not in lost} <= {"run"}
        assert max(each.attributes["govray.step.last"] for each in steps) == STEPS - 1
        assert row.trace is not None
        assert row.trace.split("-")[1] == requests[id].trace


def check_run(platform: Platform, run: Path, row: Submission, id: str) -> None:
    """Each step is in the ledger once, the model verifies, and it says whose it is."""
    assert [leaf.step for leaf in leaves(run)] == list(range(STEPS))
    model = govray.verify(run / "model", trust_root=platform.here.root)
    stated = model.attestation.run.submission
    assert stated is not None
    assert (stated.id, stated.user, stated.project) == (id, row.user, row.project)


def leaves(run: Path) -> list[Leaf]:
    data = (run / "ledger.ahead.jsonl").read_bytes()
    return [each for each in read_leaves(data) if isinstance(each, Leaf)]
