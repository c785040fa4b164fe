"""``govray --server URL``: verbs that act through a service over HTTP, and those that refuse."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from sqlmodel import Session, col, select

from govray.platform.client.logins import logins_file
from govray.platform.store import submissions as queue
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState, SubmissionState, TrialState
from govray.platform.store.tables import Submission
from tests.support.command import Run
from tests.support.device_provider import CODE, DeviceProvider, device_provider
from tests.support.people import Service, serve
from tests.support.runs import FILE
from tests.support.shown import ZERO, add_experiment, add_trial

pytestmark = pytest.mark.usefixtures("as_engineer")


@pytest.fixture(scope="module")
def provider() -> Iterator[DeviceProvider]:
    with device_provider() as made:
        yield made


@pytest.fixture(scope="module")
def service(
    provider: DeviceProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path_factory.mktemp('remote') / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, oidc=provider.settings()) as running:
        yield running


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(FILE)
    return path


def test_a_file_is_submitted(run: Run, address: str, config: Path, service: Service) -> None:
    options = ("--set", "max_steps=7", "--project", "p", "--pool", "gpu", "--priority", "-2")
    done = run("--server", address, "train", config, *options, "--tag", "a", "--tag", "b", "--json")
    made = done.json
    assert (made["state"], made["project"], made["pool"]) == ("QUEUED", "p", "gpu")
    assert (made["priority"], made["tags"], made["user"]) == (-2, ["a", "b"], "engineer")
    with Session(service.engine) as session:
        assert "max_steps: 7" in session.get_one(Submission, made["id"]).config
    shown = run(f"--server={address}", "queue", "show", made["id"]).out
    assert f"{made['id']}  QUEUED" in shown
    assert "1 of its pool's queue" in shown
    listed = run("--server", address, "queue", "ls", "--project", "p", "--tag", "b", "--json").json
    assert [each["id"] for each in listed] == [made["id"]]
    assert made["id"] in run("--server", address, "queue", "ls").out
    for verb, state in (("stop", "STOPPED"), ("resume", "QUEUED"), ("kill", "KILLED")):
        assert run("--server", address, "queue", verb, made["id"], "--json").json["state"] == state
    assert "only what is" in run("--server", address, "queue", "stop", made["id"], code=1).err


def test_it_follows_until_the_end(
    address: str, config: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thread in the place of the reconciler."""
    from govray.cli import main

    done = Event()

    def reconcile() -> None:
        while not done.is_set():
            with Session(service.engine) as session:
                statement = select(Submission).where(col(Submission.name) == "followed")
                row = session.exec(statement).first()
                if row is not None and row.state == SubmissionState.QUEUED:
                    queue.move(session, row, SubmissionState.RUNNING, changes={"run": "run-7"})
                    queue.move(session, row, SubmissionState.COMPLETED, changes={"why": "ended"})
                    session.commit()
            done.wait(0.05)

    thread = Thread(target=reconcile)
    thread.start()
    words = ["--server", address, "train", str(config), "--set", "name=followed", "--follow"]
    assert main(words) == 0
    done.set()
    thread.join()
    told = capsys.readouterr()
    assert "COMPLETED: ended" in told.err
    assert "run-7" in told.out


def test_models_are_promoted_by_the_services_gates(run: Run, address: str) -> None:
    assert run("--server", address, "model", "versions", "--json").json == []
    refused = run(
        "--server", address, "model", "promote", "gpt", "1.0.0", "--to", "staging", code=2
    )
    assert "no version" in refused.err


def test_runs_of_the_index_are_listed(run: Run, address: str, service: Service) -> None:
    with Session(service.engine) as session:
        add_experiment(session, "e", "gpt", "run", ExperimentState.COMPLETED)
        for name in ("run-a", "run-b"):
            add_trial(
                session, name, "e", ZERO, steps=3, floor=2.0, hyperparameters={},
                state=TrialState.COMPLETED,
            )  # fmt: skip
        session.commit()
    listed = run("--server", address, "runs", "ls", "--experiment", "e", "--json").json
    assert {each["id"] for each in listed} == {"run-a", "run-b"}
    assert "run-a" in run("--server", address, "runs", "ls", "--since", "2020-01-01T00:00:00Z").out
    none = run("--server", address, "runs", "ls", "--before", "2020-01-01T00:00:00Z")
    assert "No run is like that" in none.out
    assert "since" in run("--server", address, "runs", "ls", "--since", "now", code=2).err


@pytest.mark.parametrize(
    "words", [["verify", "model"], ["runs", "show", "x"], ["serve"], ["checkpoint", "ls", "x"]]
)
def test_a_verb_that_acts_here_alone_refuses_a_service(
    run: Run, address: str, words: list[str]
) -> None:
    err = run("--server", address, *words, code=2).err
    assert "acts on this machine alone" in err
    assert "train, tune" in err


def test_a_token_comes_by_standard_input(
    run: Run, address: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOVRAY_TOKEN")
    assert "token" in run("--server", address, "queue", "ls", code=1).err
    token = service.tokens["engineer"]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    done = run("login", "--server", address, "--token", "-")
    assert token not in done.out + done.err
    assert stat.S_IMODE(logins_file().stat().st_mode) == 0o600
    assert run("--server", address, "queue", "ls", "--json").code == 0
    logins_file().chmod(0o644)
    assert "others can read" in run("--server", address, "queue", "ls", code=1).err
    logins_file().chmod(0o600)
    run("logout", "--server", address)
    assert "token" in run("--server", address, "queue", "ls", code=1).err


@pytest.mark.parametrize("opaque", [False, True], ids=["access token", "ID token"])
def test_a_person_signs_in_at_the_provider_that_the_service_names(
    address: str,
    provider: DeviceProvider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    opaque: bool,
) -> None:
    from govray.cli import main

    monkeypatch.delenv("GOVRAY_TOKEN")
    provider.answers = ["authorization_pending", "granted"]
    provider.opaque = opaque
    assert main(["login", "--server", address]) == 0
    told = capsys.readouterr()
    assert f"{provider.url}/activate" in told.err
    assert CODE in told.err
    assert "eyJ" not in told.out + told.err
    assert main(["--server", address, "queue", "ls", "--json"]) == 0
    assert main(["--server", address, "logout"]) == 0
