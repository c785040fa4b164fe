"""``govray queue``: what is submitted, listed, shown and asked for, and a pass where no head is."""

from __future__ import annotations

import json
import logging
import sys
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
import yaml

from govray.cli import queue
from govray.cli.store import opened_session
from govray.errors import UsageError
from govray.platform.queue.reconcile import Move, QueuePass
from govray.platform.store.states import SubmissionState
from govray.platform.store.tables import Submission
from tests.support.command import Run
from tests.support.deployment import Deployment


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Path:
    """An experiment, and a store that the verbs find."""
    monkeypatch.setenv("GOVRAY_STORE", "sqlite:///queue.db")
    run("store", "upgrade")
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(Deployment(tmp_path / "here").experiment()))
    return path


def queue_file(folder: Path, slots: int = 2) -> Path:
    path = folder / "queue.yaml"
    path.write_text(
        "address: http://127.0.0.1:1\nstorage: runs\nstore: sqlite:///queue.db\n"
        f"pools: {{default: {{slots: {slots}}}}}\n"
    )
    return path


def test_what_the_reconciler_does_is_said_as_json_too(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fake:
        """Two passes: one starts an entry, and one fails."""

        def __init__(self, stop: Event) -> None:
            self.stop = stop

        def once(self) -> QueuePass:
            if not self.stop.is_set():
                self.stop.set()
                moved = Move("s-1", "gpt", SubmissionState.QUEUED, SubmissionState.RUNNING, None)
                return QueuePass(holder=True, moves=[moved], stray=["s-9-1"])
            raise OSError("the store is away")

    names = ("", "govray", "govray.queue", "govray.platform.service", "uvicorn", "uvicorn.error")
    kept = [(each, each.handlers[:], each.level) for each in map(logging.getLogger, names)]
    stream = StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    try:
        stop = Event()
        queue._passes(cast(Any, Fake(stop)), stop, queue._teller("json"))
    finally:
        logging.captureWarnings(False)
        for each, handlers, level in kept:
            each.handlers[:] = handlers
            each.setLevel(level)
    said = [json.loads(each) for each in stream.getvalue().splitlines()]
    assert [each["level"] for each in said] == ["info", "info", "warning"]
    assert {each["logger"] for each in said} == {"govray.queue"}
    assert said[1]["submission"] == "s-1"
    assert (said[1]["before"], said[1]["after"]) == ("QUEUED", "RUNNING")
    assert said[2]["job"] == "s-9-1"
    assert all(each["time"].endswith("+00:00") for each in said)
    with pytest.raises(UsageError, match="neither text nor json"):
        queue._teller("xml")


def test_an_empty_queue_says_how_to_fill_it(file: Path, run: Run) -> None:
    assert "govray queue submit FILE --project NAME" in run("queue", "ls").out
    assert run("queue", "ls", "--json").json == []


def test_a_file_that_is_not_there_is_named_with_the_reason(file: Path, run: Run) -> None:
    said = run("queue", "submit", "tain.yaml", "--project", "p", code=2).err
    assert "tain.yaml: the file cannot be read (No such file or directory)" in said
    assert "jobs/train.yaml" in said


def test_an_entry_is_submitted_listed_shown_stopped_and_resumed(file: Path, run: Run) -> None:
    words = ("--project", "research", "--priority", 5, "--tag", "baseline", "--user", "ada")
    made = run("queue", "submit", file, *words, "--json").json
    assert (made["state"], made["slots"], made["user"], made["priority"]) == (
        *("QUEUED", 2, "ada", 5),
    )
    assert made["tags"] == ["baseline"]
    id = made["id"]
    listed = run("queue", "ls", "--project", "research").out
    assert id in listed
    assert "QUEUED" in listed
    assert run("queue", "ls", "--project", "evaluation", "--json").json == []
    assert run("queue", "show", id, "--json").json["config"] == file.read_text()
    assert "priority 5" in run("queue", "show", id).out
    assert run("queue", "stop", id, "--json").json["state"] == "STOPPED"
    assert "can be told to stop" in run("queue", "stop", id, code=1).err
    assert run("queue", "resume", id, "--json").json["state"] == "QUEUED"
    assert run("queue", "kill", id, "--json").json["state"] == "KILLED"


def test_a_working_directory_is_archived_beside_the_runs(
    file: Path, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own.py").write_text("a = 1\n")
    (tmp_path / "runs").mkdir()
    words = ("submit", file, "--project", "a", "--working-dir", "code")
    assert "Give both options" in run("queue", *words, code=2).err
    made = run("queue", *words, "--storage", "runs", "--json").json
    digest = made["archive"].removeprefix("sha256:")
    assert (tmp_path / "runs" / "code" / f"{digest}.zip").is_file()


def test_show_says_what_an_elastic_entry_gave_back_and_for_whom(
    file: Path, run: Run, tmp_path: Path
) -> None:
    here = Deployment(tmp_path / "there").experiment(resources={"num_workers": [1, 4]})
    file.write_text(yaml.safe_dump(here))
    made = run("queue", "submit", file, "--project", "a", "--json").json
    assert (made["slots"], made["least"], made["cap"]) == (4, 1, None)
    assert "slots to" not in run("queue", "show", made["id"]).out
    with opened_session("sqlite:///queue.db") as session:
        row = session.get_one(Submission, made["id"])
        row.cap, row.gives_to = 2, "s-urgent"
        session.add(row)
        session.commit()
    assert "gives back 2 of 4 slots to s-urgent" in run("queue", "show", made["id"]).out
    with opened_session("sqlite:///queue.db") as session:
        row = session.get_one(Submission, made["id"])
        row.held = 2
        session.add(row)
        session.commit()
    assert "gave back 2 of 4 slots to s-urgent" in run("queue", "show", made["id"]).out


def test_what_is_no_experiment_or_not_there_is_refused(
    file: Path, run: Run, tmp_path: Path
) -> None:
    assert "cannot be read" in run("queue", "submit", "no.yaml", "--project", "a", code=2).err
    (tmp_path / "bad.yaml").write_text("name: x\n")
    run("queue", "submit", "bad.yaml", "--project", "a", code=2)
    assert "there is no submission 's-9'" in run("queue", "show", "s-9", code=2).err


def test_a_pass_without_a_head_moves_nothing_but_what_can_never_start(
    file: Path, run: Run, tmp_path: Path
) -> None:
    small = run("queue", "submit", file, "--project", "a", "--json").json["id"]
    run("queue", "run", queue_file(tmp_path), "--once", code=3)
    assert run("queue", "show", small, "--json").json["state"] == "QUEUED"
    run("queue", "run", queue_file(tmp_path, slots=1), "--once", code=3)
    found = run("queue", "show", small, "--json").json
    assert (found["state"], found["why"]) == (
        "ERROR",
        "it needs 2 slots, and pool 'default' has 1",
    )


def test_an_environment_names_files_of_the_job_s_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "needs.txt").write_text("numpy==2.0\n")
    (tmp_path / "secret.txt").write_text("secret\n")

    here = Deployment(tmp_path / "here")

    def asked(pip: str) -> Submission:
        value = here.experiment(environment={"pip": pip})
        given: dict[str, Any] = {"id": "s-1", "kind": "train", "config": yaml.safe_dump(value)}
        return Submission(**given)

    given = queue._runtime_env(asked("needs.txt"), folder)
    assert (given["pip"], given["working_dir"]) == (["numpy==2.0"], str(folder))
    for outside in ("../secret.txt", str(tmp_path / "secret.txt")):
        with pytest.raises(UsageError, match="lies outside the working directory"):
            queue._runtime_env(asked(outside), folder)
