"""A task as a process, without Ray, and its entry in a queue: for tests of what shows tasks."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine
from sqlmodel import Session

from govray.platform.service.http.origin import Network, TaskOrigins
from govray.platform.store import queue_entries
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState
from tests.support.people import Service, serve
from tests.support.tree import ROOT

AT = "2026-11-24T09:00:00Z"


@contextmanager
def serving_tasks(
    folder: Path, networks: tuple[Network, ...] = (ipaddress.ip_network("10.0.0.0/8"),)
) -> Iterator[Service]:
    """A service that shows tasks below ``tasks.example.org``; its storage is ``folder``."""
    url = f"sqlite:///{folder / 'store.db'}"
    open_store(url, create=True).dispose()
    origins = TaskOrigins(
        url="https://{task}.tasks.example.org",
        storage=folder,
        networks=networks,
    )
    with serve(url, tasks=origins, storage=folder) as service:
        yield service


def entry(engine: Engine, *, kind: str = "notebook", user: str = "engineer") -> str:
    """The id of a task that runs, as the queue has it."""
    with Session(engine) as session:
        row = queue_entries.submit(
            session,
            kind=kind,
            name=kind,
            project="default",
            config=f"kind: {kind}\n",
            slots=1,
            by=ChangedBy(user=user, at=AT),
        )
        assert queue_entries.move(session, row, ExperimentState.RUNNING)
        session.commit()
        return row.id


def ended(engine: Engine, task: str) -> None:
    with Session(engine) as session:
        row = session.get_one(queue_entries.QueueEntry, task)
        assert queue_entries.move(session, row, ExperimentState.COMPLETED)
        session.commit()


@contextmanager
def task_process(
    folder: Path, storage: Path, task: str, text: str
) -> Iterator[subprocess.Popen[str]]:
    """``jobs/task.py`` on loopback; killed at the end if it goes on."""
    config = folder / f"{task}.yaml"
    config.write_text(text)
    words = ["--id", task, "--storage", str(storage), "--config", str(config)]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "jobs/task.py"), *words, "--listen", "127.0.0.1"],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)
