"""A person's morning from a laptop with the base install: by the command, then by the client."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from sqlmodel import Session

from govray.governance.trust.anchor import TrustAnchor
from govray.platform.indexing.indexer import IndexSettings, index_storage
from govray.platform.service.identity import tokens
from govray.platform.store.database import open_store
from govray.platform.store.promotion_gates import read_promotion_policy
from govray.platform.store.store_secret import KEY_ENV, load_key
from govray.train.run_folder.clock import instant
from tests.support.attesting import attestor_of
from tests.support.base_install import OUTSIDE, base_install
from tests.support.forked_workers import Forked
from tests.support.gates import UNMONITORED
from tests.support.queue_world import QueueWorld, queue_world
from tests.support.site import served
from tests.support.tree import ROOT

pytestmark = [pytest.mark.story, pytest.mark.timeout(900)]

PATIENCE_S = 240.0
STEPS = 3

MORNING = """
import sys
from pathlib import Path
from govray.platform.client import connect

client, id = connect(), sys.argv[1]
assert client.people.whoami()["name"] == "ada"
print([each["name"] for each in client.projects.list()], client.experiments.pools())
assert client.experiments.check(fork_of=id, set=["optimizer.lr=0.02"]).steps == "3"
done = client.experiments.get(id)
[run] = done.runs
assert (done.state, client.runs.get(run).step) == ("COMPLETED", 3)
assert [each.id for each in client.experiments.list(tag="paper")] == [id]
loss = [each.value for each in client.runs.metrics(run, group="training", name="loss")]
assert len(loss) == 3 and all(loss)
names = [each["name"] for each in client.runs.logs(run)["items"]]
assert any(client.runs.log(run, name, search="rows")["lines"] for name in names)
assert 3 in [each.step for each in client.runs.checkpoints(run)]
assert client.runs.pin(run, 3, reason="paper").reason.endswith("paper")
client.runs.unpin(run, 3)
assert client.runs.download_checkpoint(run, 3, into=Path("again")).files
[signed] = client.attestations.list(run=run)
envelope = client.attestations.get(signed.digest)
assert client.attestations.verify(data=envelope)["outcome"] == "partlyChecked"
assert [each.version for each in client.models.find(model="narrow")] == ["1.0.0"]
made = client.experiments.submit(fork_of=id, set=["optimizer.lr=0.02"])
client.experiments.stop(made.id)
assert [*client.follow(made.id)][-1].state == "STOPPED"
client.experiments.archive(made.id)
assert client.service.usage_csv(by="user").startswith("user")
"""
"""The client's part, of at most thirty lines."""


@dataclass(frozen=True)
class Laptop:
    """A machine without Ray and torch, in whose folder a person works."""

    bin: Path
    folder: Path
    environment: dict[str, str]

    def govray(self, *words: object, code: int = 0) -> Any:
        """What a verb prints as JSON."""
        done = self._run(self.bin / "govray", *words, "--json")
        assert done.returncode == code, (words, done)
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if code == 0 else done.stderr

    def said(self, *words: object) -> str:
        """What a verb prints."""
        done = self._run(self.bin / "govray", *words)
        assert done.returncode == 0, (words, done)
        return done.stdout

    def follow(self, *words: object, seen: Callable[[str], object]) -> Any:
        """The same of a verb that goes on; ``seen`` gets each line that it tells meanwhile."""
        with self._open(self.bin / "govray", *words, "--json") as process:
            assert process.stdout
            assert process.stderr
            for line in process.stderr:
                seen(line)
            told = process.stdout.read()
        assert process.returncode == 0, words
        return json.loads(told)

    def python(self, text: str, *words: object) -> None:
        done = self._run(self.bin / "python", "-c", text, *words)
        assert done.returncode == 0, done.stderr

    def _open(self, *words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*map(str, words)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _run(self, *words: object) -> subprocess.CompletedProcess[str]:
        with self._open(*words) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@contextmanager
def working(world: QueueWorld, folder: Path) -> Iterator[None]:
    """``govray queue run``, ``attest --watch`` and ``store index --follow``, in one thread."""
    engine, stop, wrong = open_store(world.url), Event(), list[BaseException]()
    reconciler = world.reconciler(engine)
    attestor = attestor_of(world.here, world.register, world.storage, folder)
    settings = IndexSettings(
        anchor=lambda: TrustAnchor.read(world.here.root),
        key=load_key(world.url),
        project="default",
        user="operator",
        models=attestor.settings.models,
    )

    def work() -> None:
        try:
            while not stop.is_set():
                reconciler.once()
                for _ in attestor.once():
                    pass
                index_storage(engine, world.storage, settings)
                stop.wait(0.3)
        except BaseException as error:
            wrong.append(error)
            raise

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        engine.dispose()
    assert wrong == []


@contextmanager
def laptop(world: QueueWorld, folder: Path) -> Iterator[Laptop]:
    """One at which ada works with the service of ``world``, which has gates before a stage."""
    here, gates = world.here, folder / "gates.dsse.json"
    text = UNMONITORED.replace("at_most: 0.25", "at_most: 0.5")
    gates.write_bytes(read_promotion_policy(text).seal([here.signers["compliance"]]))
    engine = open_store(world.url)
    with Session(engine) as session:
        scopes = ("read", "write")
        token = tokens.new(session, "ada", role="engineer", scopes=scopes, at=instant())
        session.commit()
    engine.dispose()
    (own := folder / "laptop" / "code" / "jobs").mkdir(parents=True)
    (own / "train.py").write_bytes((ROOT / "jobs" / "train.py").read_bytes())
    home = own.parents[1]
    (home / "train.yaml").write_text(world.asked["file"])
    with served(
        world.url,
        auth=True,
        storage=world.storage,
        attestor=world.door,
        promotion=gates,
        trust_root=here.root,
    ) as address:
        said = {"GOVRAY_SERVER": address, "GOVRAY_TOKEN": token}
        own_files = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
        yield Laptop(base_install(folder), home, OUTSIDE | said | own_files)


def test_a_morning_by_the_command_and_by_the_client(
    tmp_path: Path, forked: Forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_ENV, str(tmp_path / "store.key"))
    with (
        queue_world(tmp_path, forked, steps=STEPS) as world,
        working(world, tmp_path),
        laptop(world, tmp_path) as own,
    ):
        id = by_the_command(own, world)
        assert len(MORNING.strip().splitlines()) <= 30
        own.python(MORNING, id)


def by_the_command(own: Laptop, world: QueueWorld) -> str:
    """The morning; returns the experiment's id, which `train` printed."""
    govray = own.govray

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def state(id: str) -> str:
        return str(govray("experiments", "show", id)["state"])

    assert govray("whoami")["name"] == "ada"
    assert "default" in [each["name"] for each in govray("project", "ls")]
    assert [each["name"] for each in govray("queue", "pools")] == ["default"]
    code = ("--working-dir", "code")
    assert govray("train", "train.yaml", *code, "--check")["steps"] == str(STEPS)

    world.slow.touch()
    said = list[str]()

    def seen(line: str) -> None:
        said.append(line)
        if "loss" in line:
            world.slow.unlink(missing_ok=True)

    made = own.follow("train", "train.yaml", *code, "--tag", "first", "--follow", seen=seen)
    id, told = made["id"], "".join(said)
    assert made["state"] == "COMPLETED", (made, told)
    assert f"{id}  RUNNING" in told
    assert "loss" in told

    until(lambda: govray("experiments", "show", id)["attested"] == "ATTESTED")
    [run] = govray("experiments", "show", id)["runs"]
    assert id in [each["id"] for each in govray("experiments", "ls", "--tag", "first")]
    assert [each["id"] for each in govray("runs", "ls", "--experiment", id)] == [run]
    until(lambda: govray("runs", "show", run)["state"] == "COMPLETED")
    [one, *_] = govray("runs", "logs", run, "--search", "loss of a class")
    assert one["tail"]
    measured = govray("runs", "metrics", run, "--group", "training", "--name", "loss")
    assert [each["step"] for each in measured] == list(range(STEPS))
    assert govray("checkpoint", "ls", run)[0]["step"] == STEPS
    assert govray("checkpoint", "pin", run, STEPS, "--reason", "paper")["reason"].endswith("paper")
    assert govray("checkpoint", "ls", run)[0]["pinned"]
    assert govray("checkpoint", "unpin", run, STEPS)["step"] == STEPS
    assert govray("checkpoint", "download", run, STEPS, "--into", "kept")["files"]
    assert list((own.folder / "kept").iterdir())

    fork = govray("train", "--fork", id, "--set", "optimizer.lr=0.005", *code)["id"]
    assert govray("experiments", "stop", fork)["state"] in ("STOPPING", "STOPPED")
    until(lambda: state(fork) == "STOPPED")
    assert govray("experiments", "resume", fork)["state"] == "QUEUED"

    digest = only(govray("attestation", "ls", "--run", run))["digest"]
    assert govray("attestation", "verify", digest)["outcome"] == "partlyChecked"
    version = ("--name", "narrow", "--version", "1.0.0")
    assert govray("attestation", "register", digest, *version)["attestation"] == digest
    assert only(govray("model", "versions", "narrow"))["version"] == "1.0.0"
    assert only(govray("model", "find", "narrow"))["model"] == "narrow"
    assert govray("model", "promote", "narrow", "1.0.0", "--to", "staging")["after"] == "staging"
    own_root = own.folder / "root.json"
    own_root.write_bytes(world.here.root.read_bytes())
    root = ("--trust-root", own_root)
    got = govray("model", "download", "narrow@1.0.0", "--into", "model", *root)
    assert got["attestation"] == digest
    assert govray("attestation", "find", "model/model.safetensors")
    assert govray("runs", "download", run, "--into", "evidence")["run"] == run
    assert govray("experiments", "tag", id, "paper")["tags"] == ["paper"]

    until(lambda: state(fork) == "COMPLETED")
    until(lambda: govray("experiments", "show", fork)["attested"] == "ATTESTED")
    [other] = govray("experiments", "show", fork)["runs"]
    pair = govray("runs", "compare", run, other)
    assert [each["id"] for each in pair] == [run, other]
    assert pair[0]["loss"] != pair[1]["loss"]
    assert govray("experiments", "archive", fork)["id"] == fork
    assert only(govray("runs", "delete", other))["run"] == other
    assert only(govray("runs", "deleted"))["run"] == other
    assert only(govray("runs", "restore", other))["run"] == other
    assert only(govray("usage", "--by", "user"))["name"] == "ada"
    assert own.said("usage", "--by", "user", "--csv").splitlines()[1].startswith("ada,")
    return str(id)


def only(found: list[Any]) -> Any:
    [one] = found
    return one
