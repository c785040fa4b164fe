"""Submissions as Ray Jobs, against a dashboard that says what Ray's says."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from govray.errors import UsageError
from govray.governance.attestation.environment import SETUP
from govray.governance.formats import canonical_json
from govray.governance.submission.code_archive import archive_folder
from govray.governance.submission.pool_labels import POOL_LABELS
from govray.governance.submission.register_client import RegisterClient
from govray.governance.submission.register_forms import ADDRESS, SECRET, AcceptanceForm
from govray.governance.submission.submission import read_submission
from govray.platform.attestor.register import Register
from govray.platform.queue.attestor_register import AttestorRegister
from govray.platform.queue.job import Unreachable, entrypoint
from govray.platform.queue.job_folder import CONFIG, FACTS
from govray.platform.queue.placement import Slot
from govray.platform.queue.ray_jobs import RayJobs
from govray.platform.store.run_owners import submission_facts
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from govray.platform.tasks.task_file import KINDS
from tests.support.registered import TOKEN, TRUST_ROOT, digest, door
from tests.support.tree import ROOT
from tests.support.web_server import Handler, web_server

CONFIG_TEXT = "name: tiny\n"


def node(id: str, *, head: bool = False, state: str = "ALIVE") -> dict[str, Any]:
    return {"raylet": {"nodeId": id, "isHeadNode": head, "state": state}}


class Dashboard:
    """What Ray's dashboard answers; ``broken`` is an answer in the place of every one."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.packages: dict[str, bytes] = {}
        self.stopped: list[str] = []
        self.tokens: set[str | None] = set()
        self.broken: tuple[int, str] | None = None
        self.nodes = [node("h1", head=True)]
        self.address = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, str]:
        parts = path.strip("/").split("/")
        match method, parts:
            case "GET", ["api", "version"]:
                return 200, json.dumps({"version": "4", "ray_version": "2.60.0"})
            case "GET", ["nodes?view=summary"]:
                return 200, json.dumps({"data": {"summary": self.nodes}})
            case "GET", ["api", "packages", _, name]:
                return (200, "{}") if name in self.packages else (404, "none")
            case "PUT", ["api", "packages", _, name]:
                self.packages[name] = body
                return 200, "{}"
            case "POST", ["api", "jobs"]:
                asked = json.loads(body)
                if asked["submission_id"] in self.jobs:
                    return 400, f"Job with submission_id {asked['submission_id']} already exists."
                self.jobs[asked["submission_id"]] = asked | {"status": "PENDING"}
                return 200, json.dumps(
                    {"job_id": asked["submission_id"], "submission_id": asked["submission_id"]}
                )
            case "GET", ["api", "jobs"]:
                return 200, json.dumps([*self.jobs.values(), {"type": "DRIVER", "metadata": {}}])
            case "GET", ["api", "jobs", name] if name in self.jobs:
                return 200, json.dumps(self.jobs[name])
            case "POST", ["api", "jobs", name, "stop"] if name in self.jobs:
                self.stopped.append(name)
                return 200, json.dumps({"stopped": True})
            case _, ["api", "jobs", name, *_]:
                return 404, f"Job {name} does not exist"
        return 404, "not found"


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    made = Dashboard()

    class Answer(Handler):
        def handle_any(self) -> None:
            made.tokens.add(self.headers.get("Authorization"))
            status, text = made.broken or made.answer(self.command, self.path, self.body())
            self.say(text.encode(), status)

        do_GET = do_POST = do_PUT = handle_any

    with web_server(Answer) as port:
        made.address = f"http://127.0.0.1:{port}"
        yield made


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def row(storage: Path, **more: Any) -> QueueEntry:
    code = storage.parent / "code"
    (code / "jobs").mkdir(parents=True, exist_ok=True)
    (code / "jobs" / "train.py").write_text("print('trained')\n")
    given: dict[str, Any] = {
        "id": "s-1",
        "kind": "train",
        "name": "tiny",
        "project": "research",
        "user": "ada",
        "state": ExperimentState.RUNNING,
        "pool": "default",
        "priority": 0,
        "slots": 1,
        "config": CONFIG_TEXT,
        "archive": archive_folder(code, storage),
        "submitted": "2026-11-24T09:00:00Z",
        "attempt": 1,
        "job": "s-1-1",
    }
    return QueueEntry(**given | more)


def test_a_job_has_its_command_its_folder_and_whose_it_is(
    dashboard: Dashboard, storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")  # which Ray's client would prefer
    cluster = RayJobs(dashboard.address, storage, token="abc")
    cluster.start(row(storage))
    asked = dashboard.jobs["s-1-1"]
    assert asked["entrypoint"] == f"python jobs/train.py --config {CONFIG} --submission {FACTS}"
    assert asked["metadata"] == {
        "govray.submission": "s-1",
        "govray.user": "ada",
        "govray.project": "research",
    }
    [package] = dashboard.packages.values()
    with zipfile.ZipFile(io.BytesIO(package)) as sent:
        assert {*sent.namelist()} >= {"jobs/train.py", CONFIG, FACTS}
        assert sent.read(CONFIG).decode() == CONFIG_TEXT
        (tmp_path / FACTS).write_bytes(sent.read(FACTS))
    facts = read_submission(tmp_path / FACTS)
    assert (facts.id, facts.user, facts.project) == ("s-1", "ada", "research")
    assert dashboard.tokens == {"Bearer abc"}


def test_a_start_is_asked_for_twice_and_done_once(dashboard: Dashboard, storage: Path) -> None:
    cluster = RayJobs(dashboard.address, storage)
    cluster.start(row(storage))
    dashboard.jobs["s-1-1"]["status"] = "RUNNING"
    cluster.start(row(storage))
    assert dashboard.jobs["s-1-1"]["status"] == "RUNNING"
    # Another process is faster between our look and our start: Ray says so, and all is well.
    seen = iter([None])
    cluster.look = lambda job: next(seen)  # type: ignore[method-assign]
    cluster.start(row(storage))


def test_a_job_that_is_not_there_is_told_from_a_cluster_that_cannot_be_asked(
    dashboard: Dashboard, storage: Path
) -> None:
    cluster = RayJobs(dashboard.address, storage)
    assert cluster.look("s-1-1") is None
    for broken in (
        *((404, "<h1>Not Found</h1>"), (500, "no agent"), (502, "bad gateway"), (200, "")),
        *((200, "[]"), (200, "{}"), (200, '{"submission_id": "s-1-1", "status": "ODD"}')),
    ):
        dashboard.broken = broken
        with pytest.raises(Unreachable):
            cluster.look("s-1-1")
    dashboard.broken = (200, '{"items": []}')
    with pytest.raises(Unreachable, match="does not speak as Ray Jobs do"):
        cluster.running()
    for status in (401, 403):
        dashboard.broken = (status, "Unauthorized")
        with pytest.raises(Unreachable):
            cluster.look("s-1-1")
    nobody = RayJobs("http://127.0.0.1:1", storage)
    with pytest.raises(Unreachable, match="does not answer"):
        nobody.look("s-1-1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_has_its_file_and_a_storage_that_its_folder_does_not_move(
    dashboard: Dashboard, storage: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(storage.parent)
    text = f"kind: {kind}\n"
    RayJobs(dashboard.address, Path("runs")).start(row(storage, kind=kind, config=text))
    words = f"--id s-1 --storage {storage} --config {CONFIG}"
    assert dashboard.jobs["s-1-1"]["entrypoint"] == f"python jobs/task.py {words}"
    [package] = dashboard.packages.values()
    with zipfile.ZipFile(io.BytesIO(package)) as sent:
        assert sent.read(CONFIG).decode() == text


GPU = {"gpu": Slot(labels={"pool": "gpu"}, cpus=2.0, gpus=1.0, memory=4)}


def placed(dashboard: Dashboard, storage: Path, **more: Any) -> dict[str, Any]:
    """What Ray is asked for of a job's place."""
    dashboard.jobs.clear()
    RayJobs(dashboard.address, storage, slots=GPU).start(row(storage, **more))
    [asked] = dashboard.jobs.values()
    return {name: value for name, value in asked.items() if name.startswith("entrypoint_")}


def test_a_job_goes_to_the_nodes_of_its_pool_and_a_task_gets_a_slot(
    dashboard: Dashboard, storage: Path
) -> None:
    dashboard.nodes += [node("w1"), node("w2")]
    where = {"entrypoint_label_selector": {"pool": "gpu", "ray.io/node-id": "!h1"}}
    slot = {
        "entrypoint_num_cpus": 2.0,
        "entrypoint_num_gpus": 1.0,
        "entrypoint_memory": 4,
    }
    assert placed(dashboard, storage, pool="gpu") == where  # its workers take the slots
    [asked] = dashboard.jobs.values()
    assert asked["runtime_env"]["env_vars"] == {POOL_LABELS: '{"pool": "gpu"}'}
    assert placed(dashboard, storage, pool="gpu", kind="shell") == where | slot


def test_nothing_runs_on_the_head_unless_it_is_the_only_node(
    dashboard: Dashboard, storage: Path
) -> None:
    assert placed(dashboard, storage) == {}
    dashboard.nodes.append(node("w1", state="DEAD"))
    assert placed(dashboard, storage) == {}
    dashboard.nodes.append(node("w2"))
    elsewhere = {"entrypoint_label_selector": {"ray.io/node-id": "!h1"}}
    assert placed(dashboard, storage) == placed(dashboard, storage, kind="shell") == elsewhere


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_without_a_folder_gets_what_starts_it(
    dashboard: Dashboard, storage: Path, kind: str
) -> None:
    task = row(storage, kind=kind, archive=None)
    RayJobs(dashboard.address, storage, jobs=ROOT / "jobs").start(task)
    [package] = dashboard.packages.values()
    with zipfile.ZipFile(io.BytesIO(package)) as sent:
        assert {"jobs/task.py", "jobs/infer.py", CONFIG, FACTS} <= {*sent.namelist()}


def test_no_name_of_a_file_becomes_a_command(storage: Path) -> None:
    task = row(storage, kind="notebook", id="$(x)")
    assert " --id '$(x)' --storage '/runs; b' " in entrypoint(task, Path("/runs; b"))
    with pytest.raises(UsageError, match="nothing runs a submission of kind"):
        entrypoint(row(storage, kind="shall"), storage)


def test_an_attempt_is_registered_before_its_job_starts(
    dashboard: Dashboard, storage: Path, tmp_path: Path
) -> None:
    """With the digest of its secret; the job alone gets the secret."""
    register = Register(f"sqlite:///{tmp_path}/register.db")
    setup = {SETUP: canonical_json.encode({"pip": digest("pip")}).decode(), "OWN": "1"}
    form = AcceptanceForm(**dict(submission_facts(row(storage), "sharedCluster")))
    register.accept(form, root=TRUST_ROOT, at="2026-11-24T09:00:00Z")
    with door(register) as address:
        cluster = RayJobs(
            dashboard.address,
            storage,
            runtime_env=lambda row, folder: {"working_dir": str(folder), "env_vars": setup},
            register=AttestorRegister(RegisterClient(address, TOKEN)),
        )
        cluster.start(row(storage))
        [asked] = dashboard.jobs.values()
        given = asked["runtime_env"]["env_vars"]
        assert given["OWN"] == "1"
        assert given[ADDRESS] == f"{address}/v1/register/submissions/s-1"
        [opened] = register.attempts("s-1")
        assert (opened.number, opened.secret) == (1, digest(given[SECRET]))
        assert (opened.facts, opened.pip) == (form.facts_digest, digest("pip"))
        assert (form.user, form.project, form.run) == ("ada", "research", "tiny-s-1")
        assert (form.config, form.archive) == (digest(CONFIG_TEXT), row(storage).archive)
        # A job that is there is left alone, its attempt too.
        cluster.start(row(storage))
        assert register.attempts("s-1") == (opened,)
        # A task makes no run.
        cluster.start(row(storage, id="s-2", kind="shell", job="s-2-1"))
        assert register.submissions() == ("s-1",)
        assert ADDRESS not in dashboard.jobs["s-2-1"]["runtime_env"]["env_vars"]
    register.close()
