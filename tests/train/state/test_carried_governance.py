"""What a commit carries of its run's governance: written once, checked, kept, and copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Damaged, UsageError
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place, place
from govray.train.checkpoint import commit_folder, storage
from govray.train.checkpoint.commit_folder import Folder
from govray.train.checkpoint.commit_reader import FileEntry
from govray.train.checkpoint.holds import hold, release
from govray.train.checkpoint.retention import Rules
from govray.train.inputs.run_record import read_record
from govray.train.run_folder.ledger_tree import TILE
from govray.train.state import garbage_collection
from govray.train.state.carried_governance import (
    CARRIED,
    RECORDED,
    STATE,
    carried,
    read_ledger,
    refuse_other_record,
    stated,
)
from govray.train.state.copied_checkpoint import copy_checkpoint
from govray.train.state.snapshot import committed_folders, latest
from tests.support import object_server
from tests.support.committing import Training
from tests.support.leaves import leaf
from tests.support.object_server import Server
from tests.support.runs_on_storage import begin_run
from tests.support.world import World

ALL = Rules(best=9, latest=9)
LIST = "revocations/issuer.dsse.json"


@pytest.fixture(scope="module")
def bucket(store_server: Server) -> str:
    return store_server.bucket("carried")


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(params=["folder", "s3"])
def run(request: pytest.FixtureRequest, tmp_path: Path, world: World) -> Path:
    """The folder of a run that commits there, or to S3."""
    folder = tmp_path / "runs" / "tiny-1"
    if request.param == "s3":
        folder.mkdir(parents=True)
        storage.choose(folder, request.getfixturevalue("bucket"))
        (folder / storage.FILE).rename(tmp_path / storage.FILE)
        folder.rmdir()
    begin_run(folder.parent, folder.name, world)
    if request.param == "s3":
        (tmp_path / storage.FILE).rename(folder / storage.FILE)
    (folder / LIST).parent.mkdir()
    (folder / LIST).write_bytes(b"the first list")
    return folder


def train(run: Path, *steps: int) -> Training:
    """Commit at these steps, after those that the run has."""
    newest = latest(run)
    training = Training(run, keep=ALL, resumed=newest[1] if newest else 0)
    for step in steps:
        training.step()
        training.begin(step)
    training.commits.settle(None)
    return training


def commit_at(run: Place, step: int) -> commit_folder.CommitFolder:
    return commit_folder.open_commit(dict(committed_folders(run))[step])


def objects(run: Place) -> dict[str, int]:
    return dict(storage.storage_of(run).objects())


def damage(commit: Folder, entry: FileEntry, data: bytes) -> None:
    storage.storage_around(commit).write_object(entry.digest.partition(":")[2], data)


def test_every_commit_names_what_lies_once_beside_them(run: Path) -> None:
    train(run, 1, 2)
    first = carried(commit_at(run, 1))
    assert {*first.files} == {*RECORDED, LIST}
    assert {*objects(run)} == {*first.objects} == {*carried(commit_at(run, 2)).objects}
    for name in first.files:
        assert first.read(name) == (run / name).read_bytes()
    assert first.record() == read_record(run)
    # What changes is one object more, and commits before it name what held for them.
    (run / LIST).write_bytes(b"the second list")
    before = len(objects(run))
    train(run, 3)
    assert len(objects(run)) == before + 1
    assert first.read(LIST) == b"the first list"
    assert carried(commit_at(run, 3)).read(LIST) == b"the second list"


def test_whatever_was_changed_is_named(run: Path, tmp_path: Path) -> None:
    train(run, 1)
    found = carried(commit_at(run, 1))
    for name, entry in found.files.items():
        data = found.read(name)
        if not data:
            continue  # the run has no delegations
        damage(found.commit, entry, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(Damaged, match=name):
            found.read(name)
        with pytest.raises(Damaged, match=f"(?s){name}.*|tile"):
            copy_checkpoint(run, tmp_path / "copies")
        assert not [*(tmp_path / "copies").glob("*")]
        damage(found.commit, entry, data + b"x")
        with pytest.raises(Damaged, match=name):
            found.read(name)
        storage.storage_of(run).remove_object(entry.digest.partition(":")[2])
        with pytest.raises(Damaged, match=f"{name}.* is missing"):
            carried(commit_at(run, 1)).read(name)
        damage(found.commit, entry, data)
    assert copy_checkpoint(run, tmp_path / "copies").step == 1


def test_what_a_kept_commit_names_stays(run: Path) -> None:
    few = Rules(best=0, latest=1)
    train(run, 1)
    first = {*objects(run)}
    (run / LIST).write_bytes(b"the second list")
    train(run, 2)
    both = {*objects(run)}
    only_first = first - {*carried(commit_at(run, 2)).objects}
    assert len(only_first) == 1
    # A pin keeps a commit, and what it names; without it both go, the object after the commit.
    if isinstance(dict(committed_folders(run))[1], Path):
        garbage_collection.pin(run, "checkpoint_000000001", "compared")
        garbage_collection.apply(run, few)
        assert garbage_collection.sweep(run) == ()
        assert {*objects(run)} == both
        (run / "pins.json").unlink()
    hold(run, "C-7", by="ada", at="2026-11-25T10:00:00Z")
    garbage_collection.apply(run, few)
    assert garbage_collection.sweep(run) == ()
    assert {*objects(run)} == both
    release(run, "C-7")
    shared = objects(run)
    found = garbage_collection.inventory(run)
    assert found.unnamed(shared) == {}
    assert {*found.unnamed(shared, ["checkpoint_000000001"])} == only_first
    assert garbage_collection.apply(run, few) == ("checkpoint_000000001",)
    assert {*objects(run)} == both  # a driver deletes none: its next commit may name it
    assert garbage_collection.sweep(run) == tuple(f"governance/{name}" for name in only_first)
    assert {*objects(run)} == both - only_first
    # While nobody knows what a commit names, nothing goes.
    storage.storage_of(run).write_object("0" * 64, b"nobody's")
    object_server.Raw(dict(committed_folders(run))[2]).write(STATE, b"{}")
    assert garbage_collection.sweep(run) == ()
    assert "0" * 64 in objects(run)


def test_a_copy_is_the_run_without_the_original(run: Path, tmp_path: Path, bucket: str) -> None:
    """From a folder to a bucket, and back."""
    train(run, 1, TILE + 2)
    digest, told = commit_at(run, TILE + 2).digest, read_record(run)
    step_1 = commit_at(run, 1).digest
    commits: Place = run
    if (run / storage.FILE).exists():  # the commits alone are left
        commits = place(storage.storage_of(run).url)  # type: ignore[attr-defined]
        shutil.rmtree(run)
    to: Place = tmp_path / "elsewhere"
    if isinstance(commits, Path):
        to = BucketPath.parse(bucket.replace("/commits", f"/{tmp_path.name}"))
    done = copy_checkpoint(commits, to)
    assert (done.run, done.digest, done.step) == (to / "tiny-1", digest, TILE + 2)
    assert done.missing == ("the packed rows",)
    with pytest.raises(UsageError, match="already exists"):
        copy_checkpoint(commits, to)
    if isinstance(commits, Path):
        shutil.rmtree(commits)
    else:
        for name in commits.walk_files():
            (commits / name).unlink()
    assert read_record(done.run) == told
    assert (done.run / LIST).read_bytes() == b"the first list"
    newest = latest(done.run)
    assert newest is not None
    assert newest[1] == TILE + 2
    committed = commit_folder.load(newest[0])
    assert (committed.digest, len(read_ledger(committed).splitlines())) == (digest, TILE + 2)
    assert {*objects(done.run)} == {*carried(committed).objects}
    assert garbage_collection.sweep(done.run) == ()
    # A copy of the copy is the same again.
    again = copy_checkpoint(done.run / "checkpoint_000000258", tmp_path / "again")
    assert again.digest == digest != step_1


def test_a_checkpoint_that_carries_nothing_is_refused(run: Path, tmp_path: Path) -> None:
    training = Training(run, keep=ALL)
    captured = training.state.capture(1, training.order, [leaf(0)])
    assert captured is not None
    commit_folder.commit(storage.storage_of(run).place(1, (1, 1)), captured.files())
    with pytest.raises(Damaged, match=r"does not carry record/"):
        refuse_other_record(run, carried(commit_at(run, 1)))
    with pytest.raises(Damaged, match=r"does not carry record/"):
        copy_checkpoint(run, tmp_path / "copy")


NAMES = st.sampled_from(["record/../../x", "/etc/passwd", "revocations/../x.dsse.json", "x", ""])


@given(NAMES)
def test_no_name_leads_out_of_a_runs_folder(name: str) -> None:
    entry = {"digest": "sha256:" + "0" * 64, "size": 1}
    with pytest.raises(Damaged, match="carries no"):
        stated({CARRIED: {name: entry}, "ledger": {}}, Path("commit"))
