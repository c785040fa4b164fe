"""When something happened is what the event log says, and not what a file's time says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select

from govray.platform.indexing.indexer import index_storage
from govray.platform.store import tables
from govray.train.checkpoint import commit_folder
from govray.train.run_folder import events
from tests.support.runs_on_storage import at, begin_run, commit, happen, settings
from tests.support.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def checkpoints(engine: Engine) -> dict[tuple[str, int], str | None]:
    with Session(engine) as session:
        rows = session.exec(select(tables.CheckpointRow)).all()
        return {(row.run, row.step): row.at for row in rows}


def test_a_checkpoint_was_committed_when_the_log_says(
    store: Engine, tmp_path: Path, world: World
) -> None:
    storage = tmp_path / "runs"
    folder = begin_run(storage, "tiny-1", world)
    happen(folder, [events.AttemptStarted(at=at(0), attempt=1, world_size=1, step=0)])
    said, unsaid, other = (commit(folder, step) for step in (2, 4, 6))
    digest = commit_folder.open_commit(said).digest
    happen(
        folder,
        [
            events.Committed(at=at(7), step=2, digest=digest),
            # Another commit was in the place of the third.
            events.Committed(at=at(9), step=6, digest="sha256:" + "0" * 64),
        ],
    )
    index_storage(store, storage, settings(world))
    expected = {("tiny-1", 2): at(7), ("tiny-1", 4): None, ("tiny-1", 6): None}
    assert checkpoints(store) == expected
    for place in (said, unsaid, other):  # as a copy or a backup would leave them
        os.utime(place / commit_folder.MANIFEST, (0, 0))
    index_storage(store, storage, settings(world))
    assert checkpoints(store) == expected
