"""What a job's process can do to attestor, service and queue: under three Unix accounts, and one.

The processes are those that ship. Where all is one account, each attack succeeds: that is the
control. A job is a process of the account that Ray runs under, and most attacks come from one that
Ray did not start. One head of Ray shows the rest: what a job that it started reaches, and what Ray
tells whom.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx
import pytest
import yaml
from sqlmodel import Session

from govray.cli import main, signing_key
from govray.platform.attestor.register import Register
from govray.platform.service.identity import tokens
from govray.platform.store import pools, queue_entries
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from govray.platform.store.store_secret import load_key
from govray.platform.store.tables import PoolRow
from govray.storage.reach import Account
from govray.train.run_folder.clock import instant, now
from tests.support.accounts import JOBS, OPERATOR, PERSON, SERVICE, Accounts, accounts, as_account
from tests.support.databases import Server
from tests.support.deployment import Deployment
from tests.support.process import COMMAND
from tests.support.ray_nodes import SETTINGS, agent_ports, descendants, free_ports

pytestmark = pytest.mark.slow

PASSWORD = "a-password-of-the-database"
TOKEN = "t" * 40
GOVRAY = [sys.executable, "-c", COMMAND]
PLAIN = [sys.executable, "-I", "-S", "-c"]
WAITS = "import signal, sys; print('ready', flush=True); signal.pause()"

ATTACK = r"""
import ctypes, json, os, sqlite3, sys, urllib.request

given = json.loads(sys.argv[1])

def holds(path, text):
    with open(path, "rb") as file:
        return text.encode() in file.read()

def rewritten(path):
    with open(path, "rb") as file:
        data = bytearray(file.read())
    data[-1] ^= 1
    with open(path, "wb") as file:
        return file.write(data) == len(data)

def appended(path):
    with open(path, "ab"):
        return True

def moved(path):
    os.rename(path, path + ".mine")
    os.rename(path + ".mine", path)
    return True

def planted(folder):
    os.mkdir(folder + "/model")
    return True

def written(path, statement="CREATE TABLE planted (a)"):
    with sqlite3.connect(path) as database:
        database.execute(statement)
    return True

def opened(path):
    with open(path, "rb"):
        return True

def traced(pid):
    return ctypes.CDLL(None).ptrace(0x4206, pid, None, None) == 0  # PTRACE_SEIZE

def environs(text):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid():
            try:
                found.append(holds(f"/proc/{pid}/environ", text))
            except OSError:
                pass
    return any(found)

def answered(url, token_file, text, body=None):
    headers = {"Content-Type": "application/json"}
    if token_file:
        with open(token_file) as file:
            headers["Authorization"] = f"Bearer {file.read()}"
    data = json.dumps(body).encode() if body else None
    asked = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return text in answer.read().decode()

def listed(text):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid():
            try:
                found.append(holds(f"/proc/{pid}/cmdline", text))
            except FileNotFoundError:
                pass
    return any(found)

said = {}
for name, call, *words in given:
    try:
        said[name] = globals()[call](*words)
    except (OSError, sqlite3.Error):
        said[name] = False
print(json.dumps(said))
"""

FORGED = ("forged" * 8)[:43]
TOKEN_ROW = (
    "INSERT INTO token (id, user, secret_sha256, scopes, name, created, expires) VALUES "
    f"('abcdef012345', 'ada', '{hashlib.sha256(FORGED.encode()).hexdigest()}', '[\"admin\"]', '', "
    "'2026-01-01T00:00:00Z', '2099-01-01T00:00:00Z')"
)


@dataclass
class World:
    """A deployment, whose files belong to the accounts of operator and service; and what runs."""

    accounts: Accounts
    folder: Path
    operator: int
    service: int
    running: dict[str, Popen[str]] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return (self.folder / "keys/operator.pem").read_text().splitlines()[1]

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/store/govray.db"

    def attacks(self) -> list[list[Any]]:
        """What a job tries with the files of others."""
        at = str(self.folder)
        return [
            ["reads the operator's key", "holds", f"{at}/keys/operator.pem", "PRIVATE KEY"],
            ["reads the attestor's token", "holds", f"{at}/keys/token", TOKEN],
            ["reads the queue's copy of it", "holds", f"{at}/store/attestor-token", TOKEN],
            ["reads the store", "holds", f"{at}/store/govray.db", "SQLite"],
            ["reads the store's secret", "opened", f"{at}/store/govray.db.key"],
            ["makes itself an administrator", "written", f"{at}/store/govray.db", TOKEN_ROW],
            ["puts another store there", "moved", f"{at}/store/govray.db"],
            ["writes the register", "written", f"{at}/register/register.db"],
            ["poisons a prepared shard", "rewritten", f"{at}/runs/prepared/rows"],
            ["puts other prepared data there", "moved", f"{at}/runs/prepared"],
            ["plants a model", "planted", f"{at}/models"],
            ["changes the attestor's copy", "planted", f"{at}/staging"],
            ["changes the queue's file", "appended", f"{at}/etc/queue.yaml"],
            ["changes the trust root", "appended", f"{at}/etc/root.json"],
        ]

    def attack(self, uid: int, attacks: list[list[Any]]) -> dict[str, bool]:
        done = self.accounts.run(uid, [*PLAIN, ATTACK, json.dumps(attacks)])
        assert done.returncode == 0, done.stderr
        found: dict[str, bool] = json.loads(done.stdout)
        return found

    def told(self, uid: int, *words: str) -> tuple[int, str]:
        """What a command that ends says, and its code: in a fork, which has imported all of it."""
        with tempfile.TemporaryFile("w+") as said:

            def ends() -> int:
                with redirect_stdout(said), redirect_stderr(said):
                    code = main(words)
                said.flush()
                return code

            code = as_account(Account(uid, frozenset({uid})), ends)
            said.seek(0)
            return code, said.read()

    def serve_words(self) -> list[str]:
        return ["serve", "--store", self.store, "--port", "0", "--jobs-account", f"{JOBS}:{JOBS}"]

    def start(self, name: str, uid: int, *words: str) -> None:
        """Start a command whose errors go into a log."""
        words = (*GOVRAY, *words)
        with (self.folder / f"{name}.log").open("w") as log:
            self.running[name] = self.accounts.start(
                uid, words, cwd=self.folder, log=log, PGPASSWORD=PASSWORD
            )

    def await_start(self) -> None:
        """Wait for what each process says first: the service says where it listens."""
        for name, process in self.running.items():
            assert process.stdout is not None
            self.said[name] = process.stdout.readline()
            assert self.said[name], self.log(name)

    @property
    def address(self) -> str:
        found = re.search(r"http://\S+/", self.said["service"])
        assert found
        return found[0]

    def log(self, name: str) -> str:
        return self.said[name] + (self.folder / f"{name}.log").read_text()


@contextmanager
def world(made: Accounts, name: str, operator: int, service: int, *people: str) -> Iterator[World]:
    """A deployment as docs/attestor.md has it, and its people. What was started ends with it."""
    here = World(made, made.folder / name, operator, service)
    at = here.folder
    at.mkdir()
    for folder, uid, mode in (
        *(("etc", 0, 0o755), ("keys", operator, 0o700), ("store", service, 0o700)),
        *(("register", operator, 0o700), ("staging", operator, 0o700), ("models", operator, 0o755)),
        # Jobs make their runs here, and only the owner of a folder may move it.
        *(("runs", 0, 0o1777), ("runs/prepared", operator, 0o755)),
    ):
        made.own(at / folder, uid, mode)
    if operator == JOBS:
        made.own(at / "etc", JOBS, 0o755)
    deployment = Deployment(at / "made")
    files = {
        "keys/operator.pem": (operator, 0o600, deployment.key.read_text()),
        "keys/token": (operator, 0o600, TOKEN),
        "store/attestor-token": (service, 0o600, TOKEN),
        "runs/prepared/rows": (operator, 0o644, "rows of a shard"),
        "etc/root.json": (operator, 0o644, deployment.root.read_text()),
        "etc/attestor.yaml": (operator, 0o644, yaml.safe_dump(attestor_file(at))),
        "etc/queue.yaml": (operator, 0o644, yaml.safe_dump(queue_file(at, here.store))),
    }
    for path, (uid, mode, text) in files.items():
        made.own(at / path, uid, mode, text)
    shutil.rmtree(at / "made")
    open_people(here.store, people)
    Register(f"sqlite:///{at}/register/register.db").close()
    for folder, uid in (("store", service), ("register", operator)):
        for each in (at / folder).iterdir():
            shutil.chown(each, uid, uid)
    try:
        yield here
    finally:
        for process in here.running.values():
            process.kill()
            process.communicate(timeout=30)


def attestor_file(at: Path) -> dict[str, Any]:
    return {
        "register": f"sqlite:///{at}/register/register.db",
        "port": 0,
        "token_file": f"{at}/keys/token",
        "storage": f"{at}/runs",
        "prepared": f"{at}/runs/prepared",
        "models": f"{at}/models",
        "staging": f"{at}/staging",
        "keys": [f"{at}/keys/operator.pem"],
        "trust_root": f"{at}/etc/root.json",
    }


def queue_file(at: Path, store: str) -> dict[str, Any]:
    return {
        "address": "http://127.0.0.1:1",
        "storage": f"{at}/runs",
        "store": store,
        "pools": {"default": {"slots": 2}},
        "jobs_account": f"{JOBS}:{JOBS}",
        "attestor": {
            "url": "http://127.0.0.1:1",
            "token_file": f"{at}/store/attestor-token",
            "settings_file": f"{at}/etc/attestor.yaml",
        },
    }


def open_people(url: str, people: tuple[str, ...]) -> None:
    """A store whose queue has an entry of each person."""
    engine = open_store(url, create=True)
    load_key(url)
    with Session(engine) as session:
        for each in people:
            tokens.new(session, each, role="admin", scopes=("admin",), at=instant())
            by = ChangedBy(user=each, at=now(), token=None)
            asked = {"kind": "train", "name": "gpt", "project": "a", "config": "a: 1", "slots": 2}
            queue_entries.submit(session, **asked, by=by)
        pools.state(session, [PoolRow(name="default", slots=2)])
        session.commit()
    engine.dispose()


@pytest.fixture(scope="module")
def made() -> Iterator[Accounts]:
    with accounts() as found:
        yield found


@pytest.fixture(scope="module")
def apart(made: Accounts) -> Iterator[World]:
    """Attestor, service and queue, for two people."""
    with world(made, "apart", OPERATOR, SERVICE, "ada", "mallory") as here:
        etc = here.folder / "etc"
        here.start("attestor", OPERATOR, "attest", "--watch", f"{etc}/attestor.yaml")
        here.start("service", SERVICE, *here.serve_words())
        here.start("queue", SERVICE, "queue", "run", f"{etc}/queue.yaml")
        here.await_start()
        yield here


@pytest.fixture(scope="module")
def shared(made: Accounts) -> Iterator[World]:
    """All of it under the account that runs jobs. It has one person, or nothing would start."""
    with world(made, "shared", JOBS, JOBS, "ada") as here:
        here.start("service", JOBS, *here.serve_words())
        here.await_start()
        yield here


@pytest.fixture
def plain(made: Accounts, request: pytest.FixtureRequest) -> Iterator[int]:
    """A process of some account with a secret in its environment and its arguments."""
    process = made.start(request.param, [*PLAIN, WAITS, TOKEN], cwd=made.folder, SECRET=PASSWORD)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process.pid
    process.kill()
    process.communicate(timeout=30)


def looks(pid: int) -> list[list[Any]]:
    """How one process looks into another."""
    return [
        ["reads its environment", "holds", f"/proc/{pid}/environ", PASSWORD],
        ["opens its memory", "opened", f"/proc/{pid}/mem"],
        ["traces it", "traced", pid],
    ]


def test_a_job_reaches_nothing_of_the_other_accounts(apart: World) -> None:
    found = apart.attack(JOBS, apart.attacks())

    assert {name for name, done in found.items() if done} == set()
    assert _audit(apart).status_code == 401


def test_control_with_one_account_each_attack_succeeds(shared: World) -> None:
    attacks = shared.attacks()

    found = shared.attack(JOBS, attacks)

    assert {name for name, done in found.items() if done} == {name for name, *_ in attacks}
    assert _audit(shared).status_code == 200


@pytest.mark.database
@pytest.mark.parametrize("password", [PASSWORD, None], ids=["asked", "control"])
def test_a_job_gets_nothing_by_the_socket_of_the_store(
    made: Accounts, password: str | None
) -> None:
    folder = made.own(made.folder / f"database-{bool(password)}", SERVICE, 0o755)
    server = Server(folder, password)
    code = f"import psycopg; psycopg.connect('host={folder} user=govray dbname=postgres')"
    try:
        server.start()
        job = made.run(JOBS, [sys.executable, "-c", code])
        service = made.run(SERVICE, [sys.executable, "-c", code], PGPASSWORD=PASSWORD)
    finally:
        server.stop()

    assert service.returncode == 0, service.stderr
    assert (job.returncode == 0) is (password is None), job.stderr
    assert ("no password supplied" in job.stderr) is (password is not None)


def _audit(here: World) -> httpx.Response:
    """Ask for the audit log as an administrator, with the token that a job wrote into the store."""
    headers = {"Authorization": f"Bearer govr_abcdef012345_{FORGED}"}
    return httpx.get(f"{here.address}v1/audit", headers=headers)


@pytest.mark.parametrize("uid", [JOBS, OPERATOR, SERVICE])
def test_no_process_looks_into_one_that_has_a_secret(apart: World, uid: int) -> None:
    """Nor one of its own account, such as a program that it was made to start."""
    for process in apart.running.values():
        found = apart.attack(uid, looks(process.pid))
        limits = Path(f"/proc/{process.pid}/limits").read_text()

        assert not any(found.values()), process.args
        assert re.search(r"^Max core file size +0 ", limits, re.M)


@pytest.mark.parametrize(
    ("plain", "seen"), [(SERVICE, True), (OPERATOR, False)], indirect=["plain"], ids=["one", "two"]
)
def test_control_a_process_that_keeps_nothing_is_looked_into(
    apart: World, plain: int, seen: bool
) -> None:
    assert {*apart.attack(SERVICE, looks(plain)).values()} == {seen}


@pytest.mark.parametrize("plain", [SERVICE], indirect=True)
def test_the_process_list_shows_a_job_no_secret(apart: World, plain: int) -> None:
    secrets = {"key": apart.key, "password": PASSWORD, "control": TOKEN}

    found = apart.attack(JOBS, [[name, "listed", text] for name, text in secrets.items()])

    assert found == {"key": False, "password": False, "control": True}


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "control"])
def test_a_process_that_keeps_its_memory_leaves_no_core(made: Accounts, kept: bool) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    if most == 0 or Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        pytest.skip("NO CORE CAN BE LEFT HERE: nothing shows that a kept memory leaves none")
    folder = made.own(made.folder / f"core-{kept}", JOBS, 0o700)
    code = "from govray.governance.signers.kept_memory import keep_memory; import os, resource; "
    code += f"resource.setrlimit(resource.RLIMIT_CORE, ({most}, {most})); "
    code += ("keep_memory(); " if kept else "") + "os.abort()"

    done = made.run(JOBS, [sys.executable, "-c", code], cwd=folder, SECRET=PASSWORD)

    assert done.returncode == -signal.SIGABRT
    assert bool([*folder.iterdir()]) is not kept


@pytest.mark.parametrize("signs", [True, False], ids=["signs", "control"])
def test_a_verb_that_signs_keeps_its_memory(apart: World, signs: bool) -> None:
    def kept() -> int:
        keys = apart.folder / "keys"
        libc = ctypes.CDLL(None)
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: what a test before may have taken
        if signs:
            signing_key.load(str(keys / "operator.pem"), None)
        return int(libc.prctl(3, 0, 0, 0, 0))

    assert as_account(Account(0, frozenset({0})), kept) == int(not signs)


def test_service_and_queue_act_for_two_people_only_where_jobs_are_apart(
    made: Accounts, apart: World
) -> None:
    assert all(each.poll() is None for each in apart.running.values())
    with world(made, "two-in-one", JOBS, JOBS, "ada", "mallory") as here:
        file = f"{here.folder}/etc/queue.yaml"
        queue = here.told(JOBS, "queue", "run", file, "--once")
        service = here.told(JOBS, *here.serve_words())

    why = f"the account that runs jobs ({JOBS}:{JOBS}) can read and write"
    assert (queue[0], service[0]) == (1, 1)
    assert f"keys/operator.pem: {why} the operator's key" in queue[1]
    assert f"store/govray.db: {why} the store" in service[1]


def test_the_doctor_tells_it(apart: World, shared: World) -> None:
    def accounts_of(here: World) -> dict[str, str]:
        file = f"{here.folder}/etc/queue.yaml"
        said = json.loads(here.told(here.service, "doctor", "--queue", file, "--json")[1])
        return {
            each["what"]: each["state"] for each in said["findings"] if each["check"] == "accounts"
        }

    assert "WRONG" not in accounts_of(apart).values()
    wrong = " ".join(what for what, state in accounts_of(shared).items() if state == "WRONG")
    for each in ("key", "token", "register", "trust root", "store", "secret", "data", "models"):
        assert each in wrong


def test_no_log_has_a_secret(apart: World) -> None:
    secrets = [apart.key, PASSWORD, TOKEN, "PRIVATE KEY"]
    for name in apart.running:
        said = apart.log(name)
        assert said
        assert not [each for each in secrets if each in said]


@dataclass(frozen=True)
class Head:
    """A head of Ray under the account of jobs, as its unit starts one; and a job of Ada's there."""

    folder: Path
    address: str
    job: str

    @property
    def token(self) -> str:
        return f"{self.folder}/etc/ray-token"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {RAY_TOKEN}"}

    def start(self, *argv: str, **env: str) -> str:
        """Start a job as the queue does; its id."""
        asked = {"entrypoint": shlex.join(argv), "runtime_env": {"env_vars": env}}
        at = f"{self.address}/api/jobs/"
        answer = httpx.post(at, json=asked, headers=self.headers, timeout=120)
        return str(answer.raise_for_status().json()["submission_id"])

    def get(self, path: str) -> httpx.Response:
        answer = httpx.get(f"{self.address}{path}", headers=self.headers, timeout=120)
        return answer.raise_for_status()

    def said(self, job: str, text: str) -> str:
        """What a job has said, once it has said ``text``."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in (said := str(self.get(f"/api/jobs/{job}/logs").json()["logs"])):
            state = self.get(f"/api/jobs/{job}").json()
            assert state["status"] in ("PENDING", "RUNNING", "SUCCEEDED"), state
            assert time.monotonic() < deadline, (said, state)
            time.sleep(0.5)
        return said

    def attacks(self, token: str | None) -> list[list[Any]]:
        """What somebody tries who knows where Ray is, and perhaps where a token of it is."""
        at, log = self.address, f"job-driver-{self.job}.log"
        node = self.get("/nodes?view=summary").json()["data"]["summary"][0]["raylet"]["nodeId"]
        new = {"entrypoint": "true"}
        file = f"{at}/api/v0/logs/file?node_id={node}&filename={log}&lines=100"
        return [
            ["submits a job", "answered", f"{at}/api/jobs/", token, "submission_id", new],
            ["reads a job's environment", "answered", f"{at}/api/jobs/", token, ATTEMPT],
            ["reads its log", "answered", f"{at}/api/jobs/{self.job}/logs", token, OUTPUT],
            ["reads its log as a file", "answered", file, token, OUTPUT],
            ["stops it", "answered", f"{at}/api/jobs/{self.job}/stop", token, "stopped", new],
        ]

    def files(self) -> list[list[Any]]:
        """What somebody tries who has an account of the head's machine."""
        log = f"{self.folder}/ray/own/session_latest/logs/job-driver-{self.job}.log"
        return [
            ["reads the log on disk", "holds", log, OUTPUT],
            ["reads the environment of its process", "environs", ATTEMPT],
        ]


RAY_TOKEN = "r" * 40
ATTEMPT = "a-secret-of-ada-s-attempt"
OUTPUT = "said by ada's job"
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def head(made: Accounts) -> Iterator[Head]:
    at = made.own(made.folder / "head", 0, 0o755)
    made.own(at / "etc", JOBS, 0o755)
    made.own(at / "etc/ray-token", JOBS, 0o600, RAY_TOKEN)
    made.own(at / "etc/token-of-the-queue", SERVICE, 0o600, RAY_TOKEN)
    made.own(at / "ray", JOBS, 0o700)
    port, dashboard, client = free_ports(3)
    words = [
        *("ray", "start", "--head", "--block", f"--port={port}", "--num-cpus=1"),
        *(f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"),
        *(f"--temp-dir={at / 'ray/own'}", "--object-store-memory=80000000", *agent_ports()),
    ]
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{at}/etc/ray-token"}
    found = Head(at, f"http://127.0.0.1:{dashboard}", "")
    says = f"print({OUTPUT!r}, flush=True); {WAITS}"
    deadline = time.monotonic() + PATIENCE_S
    with (at / "log").open("w+") as log, ExitStack() as ending:
        process = None
        while not found.job:
            assert time.monotonic() < deadline, (at / "log").read_text()
            if process is None or process.poll() is not None:  # on a busy machine its agent is late
                process = made.start(JOBS, words, cwd=at / "ray", log=log, **SETTINGS | auth)
                ending.callback(_end, process)
            with suppress(httpx.HTTPError):
                found = replace(found, job=found.start(*PLAIN, says, SECRET=ATTEMPT))
            time.sleep(0.5)
        found.said(found.job, OUTPUT)
        yield found


def _end(process: Popen[str]) -> None:
    for each in [*descendants(process.pid), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    process.communicate(timeout=30)


def test_ray_tells_nobody_without_its_token(apart: World, head: Head) -> None:
    """Neither a stranger, nor who has an account of the head's machine. The control: the queue."""
    for token in (None, head.token):
        found = apart.attack(PERSON, [*head.attacks(token), *head.files()])
        assert {name for name, done in found.items() if done} == set()

    allowed = head.attacks(f"{head.folder}/etc/token-of-the-queue")[:-1]
    assert {*apart.attack(SERVICE, allowed).values()} == {True}


def test_ray_logs_are_kept_by_the_folder_around_them_alone(apart: World, head: Head) -> None:
    [read, _] = head.files()
    assert not apart.attack(PERSON, [read])["reads the log on disk"]
    (head.folder / "ray").chmod(0o755)
    assert apart.attack(PERSON, [read])["reads the log on disk"]
    (head.folder / "ray").chmod(0o700)


def test_ray_jobs_reach_each_other_and_nothing_of_the_other_accounts(
    apart: World, head: Head
) -> None:
    """A cluster is one trust domain: its jobs have its token."""
    kept = [
        *apart.attacks(),
        *([f"sees {text[:12]} somewhere", "environs", text] for text in (PASSWORD, TOKEN)),
    ]
    theirs = [*head.files(), *head.attacks(head.token)]

    # In files, for Ray shows what a job was started with.
    code = apart.accounts.own(head.folder / "attack.py", JOBS, 0o600, ATTACK)
    asked = json.dumps([*kept, *theirs])
    given = apart.accounts.own(head.folder / "attacks.json", JOBS, 0o600, asked)
    words = f'{shlex.join(PLAIN[:-1])} {code} "$(cat {given})"'
    said = head.said(head.start("sh", "-c", words), theirs[-1][0]).splitlines()

    [found] = [json.loads(line) for line in said if line.startswith("{")]
    assert {name for name, done in found.items() if done} == {name for name, *_ in theirs}
    assert _audit(apart).status_code == 401


def test_ray_shows_no_secret(apart: World, head: Head) -> None:
    """In what its dashboard tells and in its logs; the control is what a job was given."""
    kinds = ("actors", "jobs", "nodes", "tasks", "workers", "runtime_envs")
    told = [head.get(f"/api/v0/{kind}?detail=true").text for kind in kinds]
    told += [head.get(path).text for path in ("/api/jobs/", "/nodes?view=summary")]
    logs = [each for each in (head.folder / "ray").rglob("*") if each.is_file()]
    told += [each.read_text(errors="replace") for each in logs]

    assert len(logs) > 5
    assert [each for each in told if ATTEMPT in each]
    for secret in (apart.key, PASSWORD, TOKEN, RAY_TOKEN):
        assert not [each for each in told if secret in each]
