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
from govray.platform.store import queue_entries as queue
from govray.platform.store.database import open_store
from govray.platform.store.states import (
    CheckpointState,
    ExperimentState,
    RunState,
)
from govray.platform.store.tables import CheckpointRow, DecisionRow, ExperimentRow, QueueEntry
from tests.support.command import Run
from tests.support.device_provider import CODE, DeviceProvider, device_provider
from tests.support.people import Service, serve
from tests.support.runs import FILE
from tests.support.shown import ZERO, add_experiment, add_run

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
        assert "max_steps: 7" in session.get_one(QueueEntry, made["id"]).config
    shown = run(f"--server={address}", "experiments", "show", made["id"]).out
    assert f"{made['id']}  QUEUED" in shown
    assert "1 of its pool's queue" in shown
    listed = run(
        "--server", address, "experiments", "ls", "--project", "p", "--tag", "b", "--json"
    ).json
    assert [each["id"] for each in listed] == [made["id"]]
    assert made["id"] in run("--server", address, "experiments", "ls").out


def test_an_id_is_completed_by_the_service_that_the_line_names(
    run: Run,
    address: str,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from govray.cli import main

    made = run("--server", address, "train", config, "--json").json["id"]
    monkeypatch.setenv("_GOVRAY_COMPLETE", "complete_bash")
    for begun, found in ((made[:-1], made), ("nothing-", "")):
        words = ["govray", "--server", address, "experiments", "show", begun]
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", "5")
        assert main([]) == 0
        assert capsys.readouterr().out.strip() == found


def test_it_follows_until_the_end(
    address: str, config: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thread in the place of the reconciler."""
    from govray.cli import main

    done = Event()

    def reconcile() -> None:
        while not done.is_set():
            with Session(service.engine) as session:
                statement = select(QueueEntry).where(col(QueueEntry.name) == "followed")
                row = session.exec(statement).first()
                if row is not None and row.state == ExperimentState.QUEUED:
                    queue.move(session, row, ExperimentState.RUNNING, changes={"job": "job-7"})
                    queue.move(session, row, ExperimentState.COMPLETED, changes={"why": "ended"})
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
    assert "job-7" in told.out


def test_models_are_promoted_by_the_services_gates(run: Run, address: str) -> None:
    assert run("--server", address, "model", "versions", "--json").json == []
    refused = run(
        "--server", address, "model", "promote", "gpt", "1.0.0", "--to", "staging", code=2
    )
    assert "no version" in refused.err
    named = ("--name", "gpt", "--version", "1.0.0", "--label", "team=a")
    run("--server", address, "attestation", "register", ZERO, *named, code=2)


def test_runs_of_the_index_are_listed(run: Run, address: str, service: Service) -> None:
    with Session(service.engine) as session:
        add_experiment(session, "e", "gpt", "train", ExperimentState.COMPLETED)
        for name, rate in (("run-a", 0.1), ("run-b", 0.2)):
            add_run(
                session, name, "e", ZERO, steps=3, floor=2.0,
                hyperparameters={"lr": rate, "width": 64}, state=RunState.COMPLETED,
            )  # fmt: skip
        state = CheckpointState.COMPLETED
        session.add(CheckpointRow(run="run-a", step=2, state=state, digest=ZERO, bytes=1500))
        session.add(
            DecisionRow(
                run="run-a", source="events", number=1, kind="stop", reason="asked", evidence={}
            )
        )
        session.commit()
    listed = run("--server", address, "runs", "ls", "--experiment", "e", "--json").json
    assert {each["id"] for each in listed} == {"run-a", "run-b"}
    assert "run-a" in run("--server", address, "runs", "ls", "--since", "2020-01-01T00:00:00Z").out
    none = run("--server", address, "runs", "ls", "--before", "2020-01-01T00:00:00Z")
    assert "No run is like that" in none.out
    assert "since" in run("--server", address, "runs", "ls", "--since", "now", code=2).err
    wrong = run("--server", address, "runs", "ls", "--sort", "colour", code=2).err
    assert "sort: " in wrong
    assert "openapi" not in wrong
    by_name = run("--server", address, "runs", "ls", "--sort", "-name", "--json").json
    assert [each["id"] for each in by_name] == ["run-b", "run-a"]
    shown = run("--server", address, "runs", "show", "run-a")
    assert "COMPLETED" in shown.out
    assert "stop: asked" in shown.out
    measured = run("--server", address, "runs", "metrics", "run-a", "--name", "loss", "--json").json
    assert [each["step"] for each in measured] == [0, 1, 2]
    compared = run("--server", address, "runs", "compare", "run-a", "run-b").out
    assert "lr" in compared
    assert "width" not in compared
    kept = run("--server", address, "checkpoint", "ls", "run-a", "--json").json
    assert [(each["step"], each["bytes"]) for each in kept] == [(2, "1500")]
    assert "1.5 kB" in run("--server", address, "checkpoint", "ls", "run-a").out
    refused = run("--server", address, "checkpoint", "pin", "run-a", "2", code=1)
    assert "ada started it" in refused.err


def test_an_experiment_has_one_id_for_every_verb(
    run: Run, address: str, config: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the variable too, which no verb of a run takes for a folder's name."""
    monkeypatch.setenv("GOVRAY_SERVER", address)
    id = run("train", config, "--json").json["id"]
    for verb, state in (("stop", "STOPPED"), ("resume", "QUEUED"), ("kill", "KILLED")):
        assert run("experiments", verb, id, "--json").json["state"] == state
    assert "only what is" in run("experiments", "stop", id, code=1).err
    assert run("experiments", "archive", id, "--json").json["archived"] is True
    assert run("experiments", "archive", id, "--undo", "--json").json["archived"] is False
    assert run("experiments", "tag", id, "paper", "--json").json["tags"] == ["paper"]
    assert "paper" in run("experiments", "tag", id).out
    assert run("experiments", "ls", "--tag", "paper", "--json").json[0]["id"] == id
    assert run("experiments", "ls", "--before", "2020-01-01", "--json").json == []
    assert run("experiments", "tag", id, "--clear", "--json").json["tags"] == []
    assert "No run of this experiment is known" in run("experiments", "delete", id, code=1).err
    assert "no experiment 'none'" in run("experiments", "stop", "none", code=2).err
    assert "GOVRAY_SERVER= before govray" in run("corpus", "ls", "corpora", code=2).err
    assert (
        "GOVRAY_SERVER= govray task notebook"
        in run("task", "notebook", "--storage", "x", code=2).err
    )
    for words in (["runs", "hold", "run-9"], ["checkpoint", "gc", "run-9"]):
        assert "acts on this machine alone" in run(*words, code=2).err
        monkeypatch.setenv("GOVRAY_SERVER", "")
        assert "acts on this machine" not in run(*words, code=2).err
        monkeypatch.setenv("GOVRAY_SERVER", address)


def test_an_experiment_is_forked_and_its_run_followed(
    run: Run, address: str, config: Path, service: Service, tmp_path: Path
) -> None:
    here = ("--server", address)
    first = run(*here, "train", config, "--set", "max_steps=7", "--json").json["id"]
    again = run(*here, "train", "--fork", first, "--set", "max_steps=8", "--json").json
    assert again["forkedFrom"] == first
    assert "max_steps: 8" in run(*here, "experiments", "show", again["id"]).out
    assert "file, or --fork" in run(*here, "train", code=2).err
    assert "file, or --fork" in run(*here, "train", config, "--fork", first, code=2).err
    with Session(service.engine) as session:
        add_experiment(session, first, "gpt", "train", ExperimentState.STOPPED)
        session.get_one(ExperimentRow, first).storage = str(tmp_path)
        add_run(
            session, "run-c", first, ZERO, steps=3, floor=2.0, hyperparameters={},
            state=RunState.COMPLETED,
        )  # fmt: skip
        session.commit()
    (tmp_path / "run-c" / "logs").mkdir(parents=True)
    (tmp_path / "run-c" / "logs" / "rank-0-1.log").write_text("one\nTWO\nthree\ntwo\n")
    assert run(*here, "runs", "logs", "run-c", "-n", "1", "-f").out == "rank-0-1.log\n  two\n"
    found = run(*here, "runs", "logs", "run-c", "--search", "two", "-n", "1", "--json").json
    assert found == [{"name": "rank-0-1.log", "tail": ["TWO", "two"]}]
    whole = (*here, "runs", "logs", "run-c", "--into", tmp_path / "whole")
    assert run(*whole, "--json").json["files"] == ["rank-0-1.log"]
    assert (tmp_path / "whole" / "rank-0-1.log").read_text() == "one\nTWO\nthree\ntwo\n"
    assert "it is there already" in run(*whole, code=2).err
    assert "Leave --follow" in run(*whole, "-f", code=2).err
    assert run(*here, "experiments", "show", first, "--json").json["runs"] == ["run-c"]
    assert "This is an experiment" in run(*here, "runs", "show", first, code=2).err
    assert f"of the experiment {first}" in run(*here, "experiments", "stop", "run-c", code=2).err


def test_what_the_service_has_is_listed(
    run: Run, address: str, config: Path, service: Service, tmp_path: Path
) -> None:
    here = ("--server", address)
    told = run(*here, "whoami", "--json").json
    assert (told["name"], told["role"]) == ("engineer", "engineer")
    assert "scopes" in run(*here, "whoami").out
    assert run(*here, "queue", "pools", "--json").json == []
    for family in ("attestation", "policy", "corpus"):
        assert run(*here, family, "ls", "--json").json == []
        assert "No " in run(*here, family, "ls").out
    assert run(*here, "attestation", "find", config, "--json").json == []
    for words in (["attestation", "verify", ZERO], ["corpus", "show", "x"]):
        run(*here, *words, code=2)
    (tmp_path / "task.yaml").write_text("kind: notebook\n")
    task = run(*here, "task", "submit", "task.yaml", "--name", "look", "--json").json["id"]
    assert [each["id"] for each in run(*here, "task", "ls", "--json").json] == [task]
    assert f"{task}  QUEUED" in run(*here, "task", "show", task).out
    assert "tasks-port" in run(*here, "task", "open", task, code=1).err
    for verb, field, value in (("kill", "state", "KILLED"), ("archive", "archived", None)):
        assert run(*here, "task", verb, task, "--json").json.get(field) == value


def test_a_run_is_deleted_listed_and_restored(
    run: Run, address: str, service: Service, tmp_path: Path
) -> None:
    (tmp_path / "run-d").mkdir()
    with Session(service.engine) as session:
        done = ExperimentState.COMPLETED
        add_experiment(session, "run-d", "gpt", "train", done)
        experiment = session.get_one(ExperimentRow, "run-d")
        experiment.storage, experiment.user = str(tmp_path), "engineer"
        add_run(
            session, "run-d", "run-d", ZERO, steps=3, floor=2.0, hyperparameters={},
            state=RunState.COMPLETED,
        )  # fmt: skip
        session.commit()
    here = ("--server", address, "runs")
    assert "it goes after" in run(*here, "delete", "run-d").out
    [marked] = run(*here, "deleted", "--json").json
    assert (marked["run"], marked["gone"], marked["user"]) == ("run-d", None, "engineer")
    assert "stays" in run("--server", address, "experiments", "restore", "run-d").out
    assert "restored" in run(*here, "deleted").out
    assert "not marked" in run(*here, "restore", "run-d", code=1).err


@pytest.mark.parametrize("words", [["verify", "model"], ["runs", "code", "x"], ["serve"]])
def test_a_verb_that_acts_here_alone_refuses_a_service(
    run: Run, address: str, words: list[str]
) -> None:
    err = run("--server", address, *words, code=2).err
    assert "acts on this machine alone" in err
    assert "Leave --server out" in err


def test_a_token_comes_by_standard_input(
    run: Run, address: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOVRAY_TOKEN")
    assert "token" in run("--server", address, "experiments", "ls", code=1).err
    token = service.tokens["engineer"]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    done = run("login", "--server", address, "--token", "-")
    assert token not in done.out + done.err
    assert stat.S_IMODE(logins_file().stat().st_mode) == 0o600
    assert run("--server", address, "experiments", "ls", "--json").code == 0
    logins_file().chmod(0o644)
    assert "others can read" in run("--server", address, "experiments", "ls", code=1).err
    logins_file().chmod(0o600)
    run("logout", "--server", address)
    assert "token" in run("--server", address, "experiments", "ls", code=1).err


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
    assert main(["--server", address, "experiments", "ls", "--json"]) == 0
    assert main(["--server", address, "logout"]) == 0
