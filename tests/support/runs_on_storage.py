"""Run folders as training leaves them, without training: records, event logs, commits, models."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from govray.governance.formats import canonical_json
from govray.governance.formats.document import parse_time
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.row_order import RowOrder
from govray.governance.submission.submission import Submission
from govray.governance.trust.anchor import TrustAnchor
from govray.platform.indexing.indexer import IndexSettings
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.storage import folder_name
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import RunRecord
from govray.train.run_folder import events
from govray.tune.search_config import parse_search
from govray.tune.search_record import SearchRecord
from tests.support.shelf_of_models import KEY
from tests.support.world import ENVIRONMENT, World

DIGEST = canonical_json.sha256(b"a manifest that nobody reads")
STARTED = datetime(2026, 11, 10, 8, tzinfo=UTC)
EXPERIMENT = {
    "name": "tiny",
    "hyperparameters": {"context": 7, "width": 8},
    "data": {"corpora": "corpora", "rows_per_step": {"everything": 3}},
    "governance": {"policy": "policy.json", "trust_root": "root.json"},
    "resources": {"num_workers": 2, "gpus_per_worker": 0.5},
    "max_steps": 12,
}


def settings(world: World, **changes: Any) -> IndexSettings:
    told = {
        "anchor": lambda: TrustAnchor(world.root),
        "key": KEY,
        "project": "alpha",
        "user": "ada",
    }
    return IndexSettings(**told | changes)


def at(seconds: int) -> str:
    """``seconds`` after the run began."""
    return f"2026-11-10T{8 + seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"


def begin_run(
    storage: Path,
    name: str,
    world: World,
    *,
    replay_of: str | None = None,
    finished: str | None = None,
    submission: Submission | None = None,
    **experiment: Any,
) -> Path:
    """A run's folder with its record and nothing else."""
    folder = storage / name
    folder.mkdir(parents=True)
    RunRecord(
        run_id=name,
        started=STARTED,
        finished=parse_time(finished) if finished else None,
        groups={},
        plan=BatchPlan(
            seed=0,
            max_steps=12,
            manifest=DIGEST,
            context=7,
            order=RowOrder(block=1, window=1 << 20),
            streams=(),
        ),
        policy=world.policy,
        root=world.root,
        manifest=b"{}",
        credentials={},
        delegations=(),
        config={},
        experiment=parse_experiment(EXPERIMENT | experiment, where="test"),
        environment=ENVIRONMENT,
        start=None,
        loader_files=b'{"config.json":"e30="}',
        replay_of=replay_of,
        submission=submission,
        gpus_per_worker=0.5,
    ).write(folder)
    return folder


def begin_search(folder: Path) -> SearchRecord:
    search = {"space": {"optimizer.lr": {"log": [1e-4, 1.0]}}, "max_trials": 4}
    folder.mkdir(parents=True)
    file = parse_search(EXPERIMENT | {"search": search}, where="test")
    record = SearchRecord(folder=folder, file=file, started=STARTED)
    record.write()
    return record


def happen(folder: Path, log: Sequence[events.AnyEvent]) -> None:
    for event in log:
        events.append(folder, event)


def commit(folder: Path, step: int, data: bytes = b"weights") -> Path:
    """A whole commit whose next step is ``step``."""
    place = folder / folder_name(step)
    commit_folder.commit(place, {"model.safetensors": data})
    return place


def finished_run(storage: Path, name: str, world: World) -> Path:
    """A run with a failure and a restart, a commit and an attested model."""
    folder = begin_run(storage, name, world, finished=at(50))
    happen(
        folder,
        [
            events.DriverStarted(at=at(0), driver=1, host="here", pid=1),
            events.AttemptStarted(at=at(10), attempt=1, world_size=2, step=0),
            events.Progress(at=at(12), step=3, loss=3.0),
            events.Progress(at=at(14), step=7, loss=2.5),
            events.Failed(
                at=at(20),
                attempt=1,
                failure="infrastructure",
                rank=1,
                step=8,
                what="a worker is gone",
                decision="restart",
            ),
            events.AttemptStarted(at=at(30), attempt=2, world_size=1, step=6),
            events.Progress(at=at(34), step=7, loss=2.4),
            events.Progress(at=at(40), step=11, loss=2.0),
            events.Finished(at=at(50), step=12),
            events.Attested(at=at(51)),
        ],
    )
    commit(folder, 12)
    world.deploy(folder / "model", run=name)
    return folder
