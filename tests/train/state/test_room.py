"""A disk that fills up: looked at before a run, and before each of its commits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from govray.errors import GovrayError, UsageError
from govray.train.checkpoint.room import KEPT_FREE
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.state import committer, garbage_collection
from govray.train.state.snapshot import folder_name, latest
from tests.support.committing import Training
from tests.support.deployment import Deployment
from tests.support.leaves import leaf
from tests.support.ranks import RankPool
from tests.support.shared_training import Shared
from tests.support.solo import run_here


def leave(room: int) -> Callable[..., Any]:
    """Stands in for ``statvfs``: all disks have so much room beside what is kept free."""
    free = KEPT_FREE + room
    return lambda _: SimpleNamespace(f_frsize=1, f_blocks=1 << 40, f_bfree=free, f_bavail=free)


def size_of(training: Training) -> int:
    capture = training.state.capture(2, training.order, [leaf(0), leaf(1)], loss=1.0)
    assert capture is not None
    return capture.size


@pytest.mark.parametrize("looked_at", [True, False], ids=["looked-at", "control"])
def test_a_commit_that_does_not_fit_is_not_begun(
    looked_at: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path)
    size = size_of(training)
    monkeypatch.setattr(os, "statvfs", leave(size))
    training.begin(1)
    training.commits._wait(None)
    assert training.commits.failure is None
    monkeypatch.setattr(os, "statvfs", leave(size - 1))
    if not looked_at:
        monkeypatch.setattr(committer, "require_room", lambda *_: None)
    training.begin(2)
    if not looked_at:
        assert training.commits.settle(None) == tmp_path / folder_name(2)
        return
    training.commits._wait(None)
    monkeypatch.undo()
    training.begin(3)  # nothing follows a failed commit, though there is room again
    with pytest.raises(GovrayError, match=r"step 2 could not be written.*disk has room") as told:
        training.commits.settle(None)
    assert "free the storage and run again" in str(told.value)
    assert latest(tmp_path) == (tmp_path / folder_name(1), 1)
    assert not garbage_collection.inventory(tmp_path).leftovers


def _parts(folder: Path, missing: int) -> str:
    """Rank 0 looks, for the parts of both."""
    training = Shared(folder)
    sizes: list[int] = [0, 0]
    dist.all_gather_object(sizes, size_of(training))
    kept, os.statvfs = os.statvfs, leave(sum(sizes) - missing)
    try:
        training.begin(2)
        training.commits.settle(None)
    except GovrayError as error:
        return str(error)
    finally:
        os.statvfs = kept
    return ""


def test_all_ranks_hear_that_their_parts_do_not_fit(tmp_path: Path) -> None:
    pool = RankPool(2, timeout=60)
    try:
        told = pool.run(_parts, tmp_path / "short", 1)
        assert told[0] == told[1]
        assert re.search("rank 0: .*its disk has room for", told[0])
        assert not list((tmp_path / "short").glob("checkpoint_*"))
        assert pool.run(_parts, tmp_path / "enough", 0) == ["", ""]
    finally:
        pool.close()


def test_a_run_is_refused_before_and_stops_at_a_whole_commit(
    here: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = here.experiment(resources={"num_workers": 1})
    sizes = []

    def train(**more: Any) -> Any:
        return GovernedTrainer(parse_experiment(given, where="test"), **more).train()

    with monkeypatch.context() as full:
        full.setattr(os, "statvfs", leave(1 << 10))
        with pytest.raises(UsageError, match=r"a checkpoint takes .* and its disk has room for"):
            train(on_size=sizes.append)
    runs = tmp_path / "here" / "runs"
    assert not list(runs.glob("*/checkpoint_*"))

    def filling(step: int, _: Any) -> None:
        if step == 6:
            monkeypatch.setattr(os, "statvfs", leave(sizes[0].commit_bytes // 2))

    with pytest.raises(GovrayError, match="step 10 could not be written"):
        train(on_step=filling)
    monkeypatch.undo()
    [run] = [each.parent for each in runs.glob("*/events.jsonl")]
    assert [each.name for each in run.glob("checkpoint_*")] == [folder_name(5)]
    run_here(monkeypatch)
    found = train(resume=run)
    assert found == run
    capture = next(run.glob("checkpoint_*"))
    held = sum(each.stat().st_size for each in capture.rglob("*") if each.is_file())
    # An upper bound, and no far one: a disk that holds one is not refused.
    assert 0.5 < held / sizes[0].commit_bytes < 1.5
