"""A command task from the queue through Ray Jobs, and what becomes of its exit code."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import ray
from sqlmodel import Session

from govray.reconciler.queue_order import SlotLimits
from govray.reconciler.ray_jobs import RayJobs
from govray.reconciler.reconcile import Reconciler
from govray.store import submissions
from govray.store.database import open_store
from govray.store.registry import ChangedBy
from govray.store.states import SubmissionState
from govray.store.tables import Submission
from govray.tasks.endpoint import task_folder
from govray.tasks.finite_task import OUTPUT
from govray.tasks.kept_files import FILES
from govray.train.run_folder.clock import instant, now
from tests.support.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("cluster")]

S = SubmissionState


def test_commands_run_from_the_queue_and_their_codes_are_final(tmp_path: Path) -> None:
    storage, code = tmp_path / "runs", tmp_path / "code"
    storage.mkdir()
    shutil.copytree(ROOT / "jobs", code / "jobs")
    engine = open_store(f"sqlite:///{tmp_path / 'queue.db'}", create=True)
    made = {}
    with Session(engine) as session:
        for name, status in (("good", 0), ("bad", 75)):
            script = f"print({name!r}, 6 * 7); raise SystemExit({status})"
            made[name] = submissions.submit(
                session,
                kind="command",
                name=name,
                project="default",
                config=f'kind: command\nargv: [python, -c, "{script}"]\n',
                slots=1,
                by=ChangedBy(user="ada", at=now(), token=None),
            ).id
        session.commit()
    address = f"http://{ray._private.worker.get_dashboard_url()}"
    reconciler = Reconciler(
        engine,
        RayJobs(address, storage, working_dir=code),
        SlotLimits(pools={"default": 2}),
        holder="the test",
        clock=instant,
    )

    def rows() -> dict[str, Submission]:
        with Session(engine) as session:
            return {name: session.get_one(Submission, id) for name, id in made.items()}

    deadline = time.monotonic() + 240
    while any(row.state not in submissions.ENDED for row in rows().values()):
        assert time.monotonic() < deadline, rows()
        reconciler.once()
        time.sleep(0.5)
    reconciler.release()
    ended = rows()
    assert (ended["good"].state, ended["bad"].state) == (S.COMPLETED, S.ERROR)
    assert ended["bad"].why is not None
    assert ended["bad"].why.startswith("its program ended with code 75: ")
    assert [row.attempt for row in ended.values()] == [1, 1]
    for name, id in made.items():
        kept = task_folder(storage, id) / FILES / OUTPUT
        assert kept.read_bytes() == f"{name} 42\n".encode()
    engine.dispose()
