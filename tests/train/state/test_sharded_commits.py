"""Commits of a model that ranks share: each writes its rows, and together they are one commit."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from govray.errors import Damaged, GovrayError, InfrastructureFailed
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.train.checkpoint import (
    commit_folder,
    commit_reader,
    storage,
    stored_tensors,
    whole_file,
)
from govray.train.checkpoint.sharded_file import part_name
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.state import committer, garbage_collection
from govray.train.state.snapshot import committed_folders, folder_name, latest
from tests.support.flipped import flip
from tests.support.object_server import CREDENTIALS, Server
from tests.support.ranks import Hung, RankPool
from tests.support.shared_training import Shared

OPTIMIZER = "optimizer.safetensors"


@pytest.fixture(scope="module")
def two() -> Iterator[RankPool]:
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def four() -> Iterator[RankPool]:
    pool = RankPool(4)
    yield pool
    pool.close()


def train(folder: Path, first: int, last: int, replicate: int = 1) -> dict[str, dict[str, Tensor]]:
    """Steps ``first … last``, a commit after each; the tensors after the last one."""
    training = Shared(folder, resumed=first, replicate=replicate)
    if first:
        training.resume(first)
    for step in range(first + 1, last + 1):
        training.step()
        training.begin(step)
    assert training.commits.settle(None) == folder / folder_name(last)
    return training.gathered()


def restored(folder: Path, step: int, replicate: int = 1) -> dict[str, dict[str, Tensor]]:
    training = Shared(folder, resumed=step, replicate=replicate)
    training.resume(step)
    return training.gathered()


def same(one: dict[str, dict[str, Tensor]], other: dict[str, dict[str, Tensor]]) -> bool:
    assert one.keys() == other.keys()
    return all(
        one[file].keys() == other[file].keys()
        and all(torch.equal(one[file][name], other[file][name]) for name in one[file])
        for file in one
    )


def test_the_parts_are_what_one_rank_would_have_gathered(four: RankPool, tmp_path: Path) -> None:
    expected = four.run(train, tmp_path, 0, 2)[0]
    found = latest(tmp_path)
    assert found == (tmp_path / folder_name(2), 2)
    commit = commit_folder.load(found[0])
    for file, tensors in expected.items():
        data = b"".join(bytes(piece) for piece in stored_tensors.pieces(tensors, where=file))
        assert whole_file.entry(commit, file).digest == canonical_json.sha256(data)
        assert file not in commit.entries
    held = [
        sum(
            t.numel()
            for t in tensors_of(commit, part_name(model_folder.WEIGHTS, rank, four.size)).values()
        )
        for rank in range(four.size)
    ]
    # The control: nobody wrote much more than its share.
    assert max(held) < sum(held) * 1.5 / four.size
    assert {
        model_folder.adapter_files("acme")[1],
        "state.json",
        "ledger.jsonl",
    } <= commit.entries.keys()
    [newest, _] = garbage_collection.inventory(tmp_path).commits
    assert newest.size == commit.size > 0
    assert not garbage_collection.inventory(tmp_path).leftovers


def test_it_loads_into_any_number_of_ranks(two: RankPool, four: RankPool, tmp_path: Path) -> None:
    by_two, by_four = tmp_path / "two", tmp_path / "four"
    ended_two, ended_four = two.run(train, by_two, 0, 1)[0], four.run(train, by_four, 0, 1)[0]
    for expected, folder, pool in (
        (ended_two, by_two, two),
        (ended_two, by_two, four),
        (ended_four, by_four, two),
    ):
        assert all(same(each, expected) for each in pool.run(restored, folder, 1))
    for expected, folder in (ended_two, by_two), (ended_four, by_four):
        alone = Shared(folder, resumed=1, cut=False)
        # The control: before it is loaded, it is another model.
        assert not torch.equal(
            alone.model.head.weight, expected[model_folder.WEIGHTS]["head.weight"]
        )
        alone.resume(1)
        assert same(alone.gathered(), expected)


@pytest.mark.story
def test_copies_commit_once_and_load_into_any_number_of_ranks(
    two: RankPool, four: RankPool, tmp_path: Path
) -> None:
    """Two copies over two ranks each: the first copy's ranks write, and all resume exactly."""
    straight, broken = (tmp_path / name for name in ("straight", "broken"))
    expected, *others = four.run(train, straight, 0, 2, 2)
    assert all(same(each, expected) for each in others), "copies differ"
    commit = commit_folder.load(straight / folder_name(2))
    parts = {name for name in commit.entries if name.startswith("parts/")}
    files = (model_folder.WEIGHTS, model_folder.EMA, OPTIMIZER)
    assert parts == {part_name(file, rank, 2) for file in files for rank in range(2)}
    assert same({file: tensors_of(commit, file) for file in files}, expected)
    four.run(train, broken, 0, 1, 2)
    four.run(train, broken, 1, 2, 2)
    assert commit_folder.load(broken / folder_name(2)).digest == commit.digest
    for pool, replicate in ((two, 1), (four, 2)):
        assert all(same(each, expected) for each in pool.run(restored, straight, 2, replicate))


def test_a_resumed_run_ends_with_the_same_bytes(two: RankPool, tmp_path: Path) -> None:
    two.run(train, tmp_path / "straight", 0, 3)
    two.run(train, tmp_path / "broken", 0, 1)
    two.run(train, tmp_path / "broken", 1, 3)
    straight, broken = (
        commit_folder.load(tmp_path / each / folder_name(3)) for each in ("straight", "broken")
    )
    assert straight.digest == broken.digest
    # The control: the steps did move the weights.
    assert straight.digest != commit_folder.load(tmp_path / "straight" / folder_name(2)).digest


def test_a_flipped_bit_in_one_ranks_part_leads_to_the_older_commit(
    two: RankPool, tmp_path: Path
) -> None:
    """Rank 1 alone reads the part; all hear of it."""
    file = OPTIMIZER
    two.run(train, tmp_path, 0, 2)
    flip(tmp_path / folder_name(2) / part_name(file, 1, 2))
    outcomes = two.outcomes(restored, tmp_path, 2)
    assert [type(each) for each in outcomes] == [InfrastructureFailed, InfrastructureFailed]
    assert f"00001-of-00002/{file}" in str(outcomes[0])
    assert latest(tmp_path) == (tmp_path / folder_name(1), 1)


def _restored_unchecked(folder: Path) -> dict[str, dict[str, Tensor]]:
    digest, commit_reader.canonical_json.sha256 = (
        commit_reader.canonical_json.sha256,
        lambda data: Anything(),
    )  # type: ignore[assignment,return-value]
    try:
        return restored(folder, 2)
    finally:
        commit_reader.canonical_json.sha256 = digest


class Anything(str):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def test_the_control_without_digests_the_flipped_bit_is_loaded(
    two: RankPool, tmp_path: Path
) -> None:
    expected = two.run(train, tmp_path, 0, 2)[0]
    flip(tmp_path / folder_name(2) / part_name(model_folder.WEIGHTS, 1, 2))
    assert not any(same(each, expected) for each in two.run(_restored_unchecked, tmp_path))


def _with_rank_one(folder: Path, patch: Callable[[], None]) -> Any:
    """One good commit, then one in which something happens to rank 1 alone."""
    training = Shared(folder)
    training.step()
    training.begin(1)
    training.commits.settle(None)
    kept = commit_folder.write, committer._gathered
    if dist.get_rank() == 1:
        patch()
    try:
        training.step()
        training.begin(2)
        training.commits._wait(None)
        failures = [str(training.commits.failure)]
        training.begin(3)
        training.commits.settle(None)
    except GovrayError as error:
        return [*failures, str(error)]
    finally:
        commit_folder.write, committer._gathered = kept


def _full() -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    commit_folder.write = full


def _elsewhere() -> None:
    """Rank 1 has a disk of its own under the same path."""
    write = commit_folder.write
    commit_folder.write = lambda staged, *rest: write(staged.with_name("elsewhere"), *rest)  # type: ignore[union-attr]


def _unnoticed() -> None:
    """Rank 1 says that it wrote what is not there."""
    write = commit_folder.write

    def lost(staged: Any, name: str, content: Any) -> Any:
        entry = write(staged, name, content)
        (staged / name).unlink()
        return entry

    commit_folder.write = lost


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        (_full, "rank 1: .*No space left"),
        (_elsewhere, "rank 1: .*storage that all ranks share"),
        (_unnoticed, "rank 0: .*00001-of-00002.*missing"),
    ],
)
def test_what_fails_on_one_rank_all_hear_and_nothing_of_it_stays(
    two: RankPool, tmp_path: Path, patch: Callable[[], None], text: str
) -> None:
    told = two.run(_with_rank_one, tmp_path, patch)
    assert told[0][1] == told[1][1], "after the last step all ranks raise the same"
    for each in told[0], told[1][1:]:
        for failure in each:
            assert re.search(text, failure), failure
    assert [step for step, _ in committed_folders(tmp_path)] == [1]
    assert not garbage_collection.inventory(tmp_path).leftovers


def _unstorable(folder: Path) -> list[str]:
    """Rank 1's optimizer can't be captured, so no rank begins to write."""
    training = Shared(folder)
    training.step()
    if dist.get_rank() == 1:
        training.optimizer.param_groups[0]["odd"] = object()
    training.begin(1)
    assert training.commits._thread is None
    with pytest.raises(GovrayError, match="odd: a object") as told:
        training.commits.settle(None)
    return [str(training.commits.failure), str(told.value)]


def test_a_copy_that_fails_on_one_rank_is_no_commit(two: RankPool, tmp_path: Path) -> None:
    told = two.run(_unstorable, tmp_path)
    assert told[0] == told[1]
    assert not list(tmp_path.glob("checkpoint_*"))


def _die(folder: Path, who: int, publishing: bool) -> None:
    """A rank dies with its part written: before it says so, or rank 0 before the manifest."""
    training = Shared(folder)
    training.step()
    training.begin(1)
    training.commits.settle(None)

    def die(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if dist.get_rank() == who:
        if publishing:
            commit_folder.publish = die
        else:
            write = commit_folder.write

            def last(staged: Any, name: str, content: Any) -> Any:
                entry = write(staged, name, content)
                if name.startswith("parts/") and name.endswith(OPTIMIZER):
                    die()
                return entry

            commit_folder.write = last
    training.step()
    training.begin(2)
    training.commits.settle(None)


@pytest.mark.parametrize(("who", "publishing"), [(1, False), (0, True)])
def test_a_rank_that_dies_before_the_manifest_leaves_what_never_loads(
    tmp_path: Path, who: int, publishing: bool
) -> None:
    pool = RankPool(2, timeout=60)
    try:
        with pytest.raises(Hung):
            pool.outcomes(_die, tmp_path, who, publishing)
    finally:
        pool.close()
    assert latest(tmp_path) == (tmp_path / folder_name(1), 1)
    for name in garbage_collection.inventory(tmp_path).leftovers:
        with pytest.raises(Damaged):
            commit_folder.open_commit(tmp_path / name)
    garbage_collection.sweep(tmp_path)
    assert [each.name for each in tmp_path.glob("checkpoint_*")] == [folder_name(1)]


def _train_remotely(run: Path) -> dict[str, dict[str, Tensor]]:
    os.environ.update(CREDENTIALS)
    training = Shared(run)
    for step in (1, 2):
        training.step()
        training.begin(step)
    newest = training.commits.settle(None)
    assert newest is not None
    again = Shared(run, resumed=2)
    again.state.restore(newest, again.order)
    assert same(again.gathered(), training.gathered())
    return training.gathered()


def test_ranks_upload_their_parts_to_remote_storage(
    two: RankPool, tmp_path: Path, store_server: Server
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    storage.choose(run, store_server.bucket("parts"))
    expected = two.run(_train_remotely, run)[0]
    found = latest(run)
    assert found is not None
    commit = commit_folder.open_commit(found[0])
    assert part_name(model_folder.WEIGHTS, 1, 2) in commit.entries
    assert same({file: tensors_of(commit, file) for file in expected}, expected)
    assert whole_file.copy(commit, model_folder.WEIGHTS, tmp_path / "copy").size > 0
    assert not garbage_collection.inventory(run).leftovers
