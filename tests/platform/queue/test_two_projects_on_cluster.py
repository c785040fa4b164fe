"""Two people's runs through queue, cluster and attestor, each of which dies in the middle."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlmodel import Session

import govray
from govray.governance.formats.document import format_time
from govray.governance.submission.code_archive import archive_folder
from govray.governance.submission.register_client import RegisterClient
from govray.governance.submission.register_forms import AcceptanceForm
from govray.platform.attestor.register import Register
from govray.platform.queue.attestor_register import AttestorRegister
from govray.platform.queue.job import Unreachable
from govray.platform.queue.queue_order import SlotLimits
from govray.platform.queue.ray_jobs import RayJobs
from govray.platform.queue.reconcile import Reconciler, Retries
from govray.platform.store import queue_entries
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from govray.platform.store.run_owners import run_name, submission_facts
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from govray.train.driver.preparation import prepare_experiment
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.run_folder import events
from govray.train.run_folder.clock import instant, now
from govray.train.state import snapshot
from tests.support import slow_while
from tests.support.attesting import attestor_of, root_digest
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked
from tests.support.ray_nodes import ray_nodes
from tests.support.registered import TOKEN
from tests.support.solo import run_here
from tests.support.tree import ROOT

pytestmark = [pytest.mark.story, pytest.mark.timeout(1800)]

S = ExperimentState
PATIENCE_S = 1500.0
STEPS = 3
OWNERS = {"ada": "research", "grace": "production"}
"""User → project; of each four runs."""

ALTERED = '''
from pathlib import Path
from govray.train.run_folder.register_posts import RegisterPosts

ended = RegisterPosts.ended

def alter_and_end(self):
    """Change the weights of the last commit, and then say that nothing is written any more."""
    commit = max(Path({storage!r}).glob(f"{{self._run}}/checkpoint_0*"))
    weights = commit / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 4
    weights.write_bytes(data)
    ended(self)

RegisterPosts.ended = alter_and_end
'''


@contextmanager
def attesting(file: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """``govray attest --watch`` as a process, whose register answers."""
    words = [str(Path(sys.executable).with_name("govray")), "attest", "--watch", str(file)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


def test_all_that_may_be_attested_is_once_and_under_the_right_names(
    tmp_path: Path, forked: Forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(slow_while.FOLDER, str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (slow := tmp_path / "slow").touch()
    here = Deployment(tmp_path / "deployment")
    here.key.chmod(0o600)
    storage = here.folder / "runs"
    storage.mkdir()
    experiment = here.experiment(
        entrypoint=f"{slow_while.__name__}:GPT",
        resources={"num_workers": 1, "cpus_per_worker": 0.5},
        max_steps=STEPS,
        checkpoint={"every_steps": 1},
    )
    del experiment["attestation_key"]  # it is the attestor's alone
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        prepare_experiment(parse_experiment(experiment, where="test"), here.signers["operator"])
    search = {"searcher": "random", "space": {"optimizer.lr": {"log": [1e-3, 1e-2]}}}
    archives = {name: _archive(tmp_path / name, storage) for name in ("honest", "altered")}
    engine = open_store(f"sqlite:///{tmp_path / 'queue.db'}", create=True)

    def put(kind: str, user: str, archive: str, **more: Any) -> str:
        by = ChangedBy(user=user, at=now(), token=None)
        with Session(engine) as session:
            row = queue_entries.submit(
                session,
                kind=kind,
                name="tiny",
                project=OWNERS[user],
                config=yaml.safe_dump(experiment | more),
                slots=1,
                by=by,
                archive=archives[archive],
            )
            session.commit()
            form = AcceptanceForm(**dict(submission_facts(row, RayJobs.isolation)))
        register.accept(form, root=root_digest(here), at=format_time(instant()))
        return form.submission

    def row(id: str) -> QueueEntry:
        with Session(engine, expire_on_commit=False) as session:
            return session.get_one(QueueEntry, id)

    port = _free_port()
    (token := tmp_path / "token").write_text(TOKEN)
    token.chmod(0o600)
    register = Register(f"sqlite:///{tmp_path / 'register.db'}")
    settings = attestor_of(here, register, storage, tmp_path).settings
    given = settings.model_dump(mode="json", by_alias=True, exclude_none=True)
    given |= {"register": f"sqlite:///{tmp_path / 'register.db'}", "port": port}
    given |= {"token_file": str(token)}
    (file := tmp_path / "attestor.yaml").write_text(yaml.safe_dump(given))
    told = AttestorRegister(RegisterClient(f"http://127.0.0.1:{port}", TOKEN))

    with ray_nodes(forked, workers=0, cpus=2) as nodes:
        reconciler = Reconciler(
            engine,
            RayJobs(nodes.dashboard, storage, register=told),
            SlotLimits(pools={"default": 2}),
            holder="the test",
            clock=instant,
            retries=Retries(first_s=0.1),
            decided=told.decided,
        )

        def until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not condition():
                assert time.monotonic() < deadline, [
                    (row(id).state, row(id).why) for id in everyone
                ]
                with suppress(Unreachable):
                    reconciler.once()
                time.sleep(0.3)

        def ended(state: S = S.COMPLETED) -> list[str]:
            return [id for id in everyone if row(id).state is state]

        with attesting(file, port) as attestor:
            everyone = [put("train", user, "honest") for user in OWNERS for _ in range(3)]
            everyone += [put("train", "ada", "honest"), put("train", "grace", "altered")]
            everyone.append(put("tune", "grace", "honest", search=search | {"max_trials": 2}))
            first = everyone[0]
            until(lambda: bool(row(first).job))
            run = storage / run_name(row(first))
            until(lambda: snapshot.latest(run) is not None)
            os.kill(next(_drivers(run)), 9)
            slow.unlink()
            until(lambda: row(first).failures == 1)
            until(lambda: bool([id for id in everyone if row(id).attested]))
            attestor.kill()
            attestor.wait()
            reconciler.once()  # nothing answers
        with attesting(file, port):
            until(lambda: len(ended()) >= 4)
            nodes.head.kill()
            until(lambda: all(row(id).attested for id in everyone))
        assert nodes.head.starts >= 2

    *honest, altered, tuned = map(row, everyone)
    print(
        [
            (each.state, each.attempt, each.attested, each.not_attested)
            for each in map(row, everyone)
        ]
    )
    assert altered.attested == "NOT_ATTESTED"
    assert "model.safetensors" in str(altered.not_attested)
    assert {each.attested for each in (*honest, tuned)} == {"ATTESTED"}
    assert honest[0].attempt >= 2
    runs = {run_name(each): each for each in honest}
    trials = dict.fromkeys(register.runs(tuned.id), tuned)
    assert len(trials) == 2
    models = settings.models
    assert {each.name for each in models.iterdir()} == {*runs, *trials}
    for name, submitted in (runs | trials).items():
        model = govray.verify(models / name, trust_root=here.root)
        stated = model.attestation.execution
        assert model.attestation.run.id == name
        assert stated.submission == submitted.id
        assert (stated.user, stated.project) == (submitted.user, OWNERS[submitted.user])
        settled = register.attested(submitted.id, name)
        assert settled is not None
        assert settled.digest == model.digest
    register.close()
    engine.dispose()


def _archive(code: Path, storage: Path) -> str:
    """The shipped jobs; in ``altered`` training's has more in front of it."""
    (code / "jobs").mkdir(parents=True)
    for name in ("train.py", "tune.py"):
        text = (ROOT / "jobs" / name).read_text()
        if code.name == "altered":
            head, mark, rest = text.partition("\ndef main")
            text = head + ALTERED.format(storage=str(storage)) + mark + rest
        (code / "jobs" / name).write_text(text)
    return archive_folder(code, storage)


def _drivers(run: Path) -> Iterator[int]:
    return (each.pid for each in events.read(run) if isinstance(each, events.DriverStarted))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
