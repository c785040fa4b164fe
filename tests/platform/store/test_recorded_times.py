"""When something happened is what the event log says, and not what a file's time says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select

from govray.platform.indexing.indexer import index_storage
from govray.platform.store import tables
from govray.platform.store.states import TrialState
from govray.train.checkpoint import commit_folder
from govray.train.run_folder import event_rows, events
from tests.support.runs_on_storage import at, begin_run, commit, finished_run, happen, settings
from tests.support.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def checkpoints(engine: Engine) -> dict[tuple[str, int], str | None]:
    with Session(engine) as session:
        rows = session.exec(select(tables.Checkpoint)).all()
        return {(row.trial, row.step): row.at for row in rows}


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


def test_a_finished_run_keeps_its_times_when_it_is_looked_at_again(
    store: Engine, tmp_path: Path, world: World
) -> None:
    storage = tmp_path / "runs"
    folder = finished_run(storage, "tiny-1", world)
    digest = commit_folder.open_commit(dict(_commits(folder))[12]).digest
    happen(folder, [events.Committed(at=at(49), step=12, digest=digest)])
    for _ in range(2):  # the second finds a log that has not grown
        index_storage(store, storage, settings(world))
        assert checkpoints(store) == {("tiny-1", 12): at(49)}


def _commits(folder: Path) -> list[tuple[int, Path]]:
    return [(12, next(folder.glob("checkpoint_*12")))]


def test_a_completed_replay_finished_with_its_last_event(
    store: Engine, tmp_path: Path, world: World
) -> None:
    storage = tmp_path / "runs"
    folder = finished_run(storage, "tiny-1", world)
    replay = begin_run(folder / "replays", "replay-1", world, replay_of="tiny-1")
    happen(
        replay,
        [
            events.AttemptStarted(at=at(60), attempt=1, world_size=1, step=0),
            events.Progress(at=at(70), step=11, loss=2.0),
        ],
    )
    half = begin_run(folder / "replays", "replay-2", world, replay_of="tiny-1")
    happen(half, [events.AttemptStarted(at=at(60), attempt=1, world_size=1, step=0)])
    commit(replay, 12)
    index_storage(store, storage, settings(world))
    with Session(store) as session:
        whole = session.get_one(tables.Trial, "replay-1")
        assert (whole.state, whole.finished) == (TrialState.COMPLETED, at(70))
        cut = session.get_one(tables.Trial, "replay-2")
        assert (cut.state, cut.finished) == (TrialState.INTERRUPTED, None)


def test_times_of_commits_are_by_step_and_digest() -> None:
    digest = "sha256:" + "1" * 64
    log = [events.Committed(at=at(step), step=step, digest=digest) for step in (2, 4)]
    assert event_rows.commit_times(log) == {(2, digest): at(2), (4, digest): at(4)}
    assert "checkpoint of step 4" in log[1].text
