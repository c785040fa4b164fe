"""``govray --server URL``: verbs that act through a service over HTTP, and those that refuse."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from sqlmodel import Session, col, select

from govray.cli import remote
from govray.platform.client.logins import logins_file
from govray.platform.store import submissions as queue
from govray.platform.store.database import open_store
from govray.platform.store.states import (
    CheckpointState,
    ExperimentState,
    SubmissionState,
    TrialState,
)
from govray.platform.store.tables import Checkpoint, Experiment, Submission, Trial
from govray.train.checkpoint.pins import MANIFEST, folder_name
from tests.support.command import Run
from tests.support.device_provider import CODE, DeviceProvider, device_provider
from tests.support.listening import listening
from tests.support.people import Service, serve
from tests.support.runs import FILE
from tests.support.shown import ZERO, add_experiment, add_trial
from tests.support.tree import ROOT

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


def test_a_check_submits_nothing(run: Run, address: str, config: Path, service: Service) -> None:
    with Session(service.engine) as session:
        before = len(session.exec(select(Submission)).all())
    text = run("--server", address, "train", config, "--check", "--set", "max_steps=10").out
    assert "at most 10\n" in text
    assert "policies/licences.dsse.json: not known" in text
    assert "worker hours" in text
    with Session(service.engine) as session:
        assert len(session.exec(select(Submission)).all()) == before


def test_a_file_is_for_the_verb_of_its_kind(run: Run, address: str, config: Path) -> None:
    search = ROOT / "jobs" / "tune.yaml"
    limit = ("--set", "+search.max_concurrent_trials=2")
    assert run("--server", address, "tune", search, *limit, "--json").json["kind"] == "tune"
    assert "search section" in run("--server", address, "train", search, *limit, code=2).err
    assert "no search section" in run("--server", address, "tune", config, code=2).err


def test_errors_name_the_line_of_the_file(run: Run, address: str, config: Path) -> None:
    config.write_text(FILE.replace("max_steps:", "max_stesp:"))
    assert "did you mean 'max_steps'" in run("--server", address, "train", config, code=2).err
    assert "no such file" in run("--server", address, "train", "nothing.yaml", code=2).err


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


def test_the_variable_leaves_verbs_of_this_machine_alone(
    run: Run, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOVRAY_SERVER", address)
    assert run("runs", "ls", "--json").json == []
    assert "folder of a run" in run("runs", "logs", "nowhere", code=2).err
    assert run("--version").code == 0


@pytest.mark.parametrize(
    "words", [["verify", "model"], ["runs", "logs", "x"], ["serve"], ["model", "download", "x"]]
)
def test_a_verb_that_acts_here_alone_refuses_a_service(
    run: Run, address: str, words: list[str]
) -> None:
    err = run("--server", address, *words, code=2).err
    assert "acts on this machine alone" in err
    assert "train, tune" in err


def test_help_says_what_acts_there(run: Run, address: str) -> None:
    assert "Act through a service" in run("--help").out
    there = run("--server", address, "--help").out
    assert all(verb in there for verb in ("train", "tune", "runs", "model"))
    assert run("--server", code=2).err
    assert {each.name for each in remote.app.registered_commands} >= {"train", "tune"}


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


@pytest.mark.parametrize(
    ("given", "token", "code", "said"),
    [
        ("govr_wrong\n", "-", 1, "no token of this service"),
        ("govr_wrong\n", "-", 1, "Give a token that is good: govray login --server"),
        ("\n", "-", 2, "no token on standard input"),
        ("", "govr_on_the_line", 2, "can be read by others"),
    ],
)
def test_a_token_that_is_not_accepted_is_not_kept(
    run: Run,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    token: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    err = run("login", "--server", address, "--token", token, code=code).err
    assert said in err
    assert "govr_on_the_line" not in err
    assert not logins_file().exists()


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


def test_a_person_who_refuses_is_not_signed_in(
    run: Run, address: str, provider: DeviceProvider
) -> None:
    provider.answers = ["access_denied"]
    from govray.cli import main

    assert main(["login", "--server", address]) == 1
    assert not logins_file().exists()


def test_a_service_without_a_provider_says_so(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'plain.db'}"
    open_store(url, create=True).dispose()
    with serve(url) as plain, listening(plain.app) as address:
        assert "--token -" in run("login", "--server", address, code=2).err


def test_checkpoints_are_pinned(run: Run, address: str, service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "t-1" / folder_name(300)
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text("{}")
    going = TrialState.COMPLETED
    with Session(service.engine) as session:
        add_experiment(session, "e-1", "gpt", "run", ExperimentState.COMPLETED)
        add_trial(session, "t-1", "e-1", ZERO, steps=1, floor=1.0, hyperparameters={}, state=going)
        session.flush()
        experiment = session.get_one(Experiment, "e-1")
        experiment.storage, experiment.user = str(tmp_path), "engineer"
        session.get_one(Trial, "t-1").folder = "t-1"
        state = CheckpointState.COMPLETED
        session.add(Checkpoint(trial="t-1", step=300, state=state, digest=ZERO))
        session.commit()
    words = ("--server", address, "runs")
    kept = {"step": 300, "reason": "pinned by engineer: table 2"}
    assert run(*words, "pin", "t-1", "300", "--reason", "table 2", "--json").json == kept
    assert run(*words, "pins", "t-1", "--json").json == [kept]
    assert "table 2" in run(*words, "pins", "t-1").out
    assert "not pinned" in run(*words, "unpin", "t-1", "300").out
    assert run(*words, "pins", "t-1", "--json").json == []
    assert "no checkpoint '7'" in run(*words, "pin", "t-1", "7", code=2).err
