"""``govray queue run``: what it says, a pass where no head is, and what a job is given."""

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
from govray.errors import UsageError
from govray.platform.queue.reconcile import Move, QueuePass
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from tests.support.command import Run
from tests.support.deployment import Deployment
from tests.support.people import Service


@pytest.fixture
def file(tmp_path: Path, service: Service) -> Path:
    """An experiment, and a service that the verbs find."""
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(Deployment(tmp_path / "here").experiment()))
    return path


def queue_file(folder: Path, slots: int = 2) -> Path:
    path = folder / "queue.yaml"
    path.write_text(
        "address: http://127.0.0.1:1\nstorage: runs\nstore: sqlite:///store.db\n"
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
                moved = Move("s-1", "gpt", ExperimentState.QUEUED, ExperimentState.RUNNING, None)
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
    assert said[1]["entry"] == "s-1"
    assert (said[1]["before"], said[1]["after"]) == ("QUEUED", "RUNNING")
    assert said[2]["job"] == "s-9-1"
    assert all(each["time"].endswith("+00:00") for each in said)


def test_a_pass_without_a_head_moves_nothing_but_what_can_never_start(
    file: Path, run: Run, tmp_path: Path
) -> None:
    small = run("train", file, "--json").json["id"]
    run("queue", "run", queue_file(tmp_path), "--once", code=3)
    assert run("experiments", "show", small, "--json").json["state"] == "QUEUED"
    run("queue", "run", queue_file(tmp_path, slots=1), "--once", code=3)
    found = run("experiments", "show", small, "--json").json
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

    def asked(pip: str) -> QueueEntry:
        value = here.experiment(environment={"pip": pip})
        given: dict[str, Any] = {"id": "s-1", "kind": "train", "config": yaml.safe_dump(value)}
        return QueueEntry(**given)

    given = queue._runtime_env(asked("needs.txt"), folder)
    assert (given["pip"], given["working_dir"]) == (["numpy==2.0"], str(folder))
    for outside in ("../secret.txt", str(tmp_path / "secret.txt")):
        with pytest.raises(UsageError, match="lies outside the working directory"):
            queue._runtime_env(asked(outside), folder)
