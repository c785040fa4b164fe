"""A run of two workers that commits to an S3 server: one is killed, it resumes and is attested."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import ray.train

import govray
from govray.train.checkpoint import commit_folder, storage
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.run_folder import events
from govray.train.state import snapshot
from govray.train.state.garbage_collection import inventory
from tests.support import loops
from tests.support.deployment import Deployment
from tests.support.object_server import Server

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def bucket(store_server: Server) -> str:
    return store_server.bucket("on-cluster")


def files(run: Path) -> dict[str, str]:
    found = snapshot.latest(run)
    assert found is not None
    entries = commit_folder.load(found[0]).entries
    return {name: entry.digest for name, entry in entries.items() if name != snapshot.STATE}


def test_a_killed_worker_resumes_from_s3_and_the_run_ends_with_the_same_bytes(
    finished: Path, deployment: Deployment, bucket: str, tmp_path: Path
) -> None:
    # Relative paths of a loop's settings count from the job's folder.
    flag, run = Path(os.path.relpath(tmp_path / "died")), deployment.folder / "runs" / "on-s3"
    kept = {"every_steps": 5, "save_trial_latest": 2, "storage": bucket}
    trainer = GovernedTrainer(
        parse_experiment(deployment.experiment(checkpoint=kept), where="test")
    )
    result = replace(
        trainer,
        train_loop_per_worker=loops.dies_once_there_is_a_commit,
        train_loop_config=read_record(finished).config
        | {"fail_at": 7, "flag": str(flag), "run": str(run)},
        run_config=ray.train.RunConfig(
            name=run.name,
            storage_path=str(run.parent),
            failure_config=ray.train.FailureConfig(max_failures=0),
        ),
    ).fit()
    assert Path(result.path) == run
    assert flag.exists()
    assert [e.step for e in events.read(run) if isinstance(e, events.AttemptStarted)] == [0, 5]
    lost = [(e.failure, e.decision) for e in events.read(run) if isinstance(e, events.Failed)]
    assert lost == [("infrastructure", "restart")]  # which does not count: no failure is allowed
    assert files(run) == files(finished)
    assert not list(run.glob("checkpoint_0*"))
    # What else is asked of a run's folder.
    assert run_listing.inspect(run).state == "attested"
    verified = govray.verify(run / "model", trust_root=deployment.root)
    original = govray.verify(finished / "model", trust_root=deployment.root)
    # The record has a script's loop in the place of an experiment.
    one, other = ([s for s in v.subjects if s.name != "govray.json"] for v in (verified, original))
    assert one == other
    assert [commit.step for commit in inventory(run).commits] == [12, 10]
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path).name == storage.POINTER
