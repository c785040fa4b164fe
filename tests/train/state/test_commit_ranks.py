"""Commits and loads over real ranks: whatever one of them meets, all end the same way."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from govray.errors import GovrayError, InfrastructureFailed, RankFailed, Refused
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.retention import Rules
from govray.train.state import committer
from govray.train.state.snapshot import folder_name, latest
from tests.support.committing import Training
from tests.support.leaves import leaf
from tests.support.ranks import RankPool


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    pool = RankPool(2, timeout=60)
    yield pool
    pool.close()


def _train(folder: Path) -> None:
    training = Training(folder, keep=Rules(latest=9))
    for step in (1, 2):
        training.step()
        torch.manual_seed(10 * step + dist.get_rank())
        training.begin(step)
        torch.rand(3)
    training.commits.settle(None)


def _draw(folder: Path) -> float:
    """The next random number of this rank after resuming."""
    found = latest(folder)
    assert found is not None
    training = Training(folder, resumed=2)
    assert training.state.restore(found[0], training.order) == (leaf(0), leaf(1))
    return float(torch.rand(1))


def test_every_rank_gets_its_own_generator_back(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(_train, tmp_path)
    expected = []
    for rank in range(2):
        torch.manual_seed(20 + rank)
        expected.append(float(torch.rand(1)))
    assert ranks.run(_draw, tmp_path) == expected
    assert expected[0] != expected[1]


def _restore(folder: Path, damaged: bool) -> None:
    """Rank 1 alone reads a byte that is not what was committed, or can't read."""
    read = commit_folder._read

    def worse(path: Path, size: int) -> bytes:
        if not damaged:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        found = read(path, size)
        return found[:-1] + b"?" if path.name == "optimizer.json" else found

    if dist.get_rank() == 1:
        commit_folder._read = worse
    try:
        training = Training(folder, resumed=2)
        training.state.restore(folder / folder_name(2), training.order)
    finally:
        commit_folder._read = read


@pytest.mark.parametrize(
    ("damaged", "kind", "said", "newest"),
    [(True, InfrastructureFailed, "optimizer.json", 1), (False, RankFailed, "Input/output", 2)],
    ids=["damage leads to the older commit", "a storage error puts nothing aside"],
)
def test_what_one_rank_reads_stops_all(
    ranks: RankPool, tmp_path: Path, damaged: bool, kind: type[Exception], said: str, newest: int
) -> None:
    ranks.run(_train, tmp_path)
    outcomes = ranks.outcomes(_restore, tmp_path, damaged)
    assert [type(each) for each in outcomes] == [kind, kind]
    assert len({str(each) for each in outcomes}) == 1 or not damaged
    assert said in str(outcomes[0])
    assert latest(tmp_path) == (tmp_path / folder_name(newest), newest)


def _restore_for_another_policy(folder: Path) -> None:
    training = Training(folder, resumed=2, policy_digest="sha256:" + "a" * 64)
    training.state.restore(folder / folder_name(2), training.order)


def test_a_commit_of_another_policy_is_refused_and_stays(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(_train, tmp_path)
    outcomes = ranks.outcomes(_restore_for_another_policy, tmp_path)
    assert [type(each) for each in outcomes] == [Refused, Refused]
    assert latest(tmp_path) == (tmp_path / folder_name(2), 2)


def _settle_slowly(folder: Path, fails: bool) -> Any:
    """Rank 0's thread takes several of the others' patiences."""
    import time

    write, committer.PATIENCE_S = commit_folder.write, 0.05

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        if fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*arguments)

    commit_folder.write = slow
    try:
        training = Training(folder)
        training.begin(1)
        return training.commits.settle(None)
    finally:
        commit_folder.write, committer.PATIENCE_S = write, 10.0


def test_all_ranks_wait_for_the_last_commit_and_share_its_outcome(ranks: RankPool) -> None:
    with tempfile.TemporaryDirectory() as name:
        newest = ranks.run(_settle_slowly, Path(name), False)
        assert newest == [Path(name) / folder_name(1)] * 2
    with tempfile.TemporaryDirectory() as name:
        outcomes = ranks.outcomes(_settle_slowly, Path(name), True)
        assert [type(each) for each in outcomes] == [GovrayError, GovrayError]
        assert "No space left" in str(outcomes[1])
        assert list(Path(name).glob("checkpoint_*")) == []
