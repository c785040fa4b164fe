"""Commits in a folder and on object stores: one behaviour, over real servers of S3 and Google."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from govray.errors import Damaged, GovrayError, InfrastructureFailed, Refused
from govray.storage.bucket_path import BucketPath
from govray.storage.storage_url import below
from govray.train.checkpoint import commit_folder, storage
from govray.train.checkpoint.commit_folder import MANIFEST
from govray.train.checkpoint.object_store import ObjectStore
from govray.train.checkpoint.retention import Rules
from govray.train.inputs import gating
from govray.train.run_folder import run_lock
from govray.train.state import garbage_collection
from govray.train.state.snapshot import committed_folders, folder_name, latest
from tests.support import object_server
from tests.support.committing import Training
from tests.support.leaves import leaf
from tests.support.object_server import Raw, Server

ALL = Rules(best=9, latest=9)


@pytest.fixture(scope="module")
def bucket(store_server: Server) -> str:
    return store_server.bucket("storage")


@pytest.fixture
def remote(tmp_path: Path, bucket: str) -> Path:
    """The folder of a run that commits to S3."""
    run = tmp_path / "run"
    run.mkdir()
    storage.choose(run, bucket)
    return run


@pytest.fixture(params=["folder", "s3"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a run, over each kind of storage."""
    if request.param == "s3":
        return Path(request.getfixturevalue("remote"))
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def trained(run: Path, steps: int = 3) -> Training:
    training = Training(run, keep=ALL)
    for step in range(1, steps + 1):
        training.step()
        training.begin(step)
    training.commits.settle(None)
    return training


def steps(run: Path) -> list[int]:
    return [step for step, _ in committed_folders(run)]


def commit_of(run: Path, step: int) -> commit_folder.Folder:
    return dict(committed_folders(run))[step]


def store_of(run: Path) -> ObjectStore:
    found = storage.storage_of(run)
    assert isinstance(found, ObjectStore)
    return found


def objects(run: Path) -> set[str]:
    store = store_of(run)
    return set(store.files_below(store.root, store.url))


def test_what_was_committed_is_resumed(run: Path) -> None:
    training = trained(run)
    found = latest(run)
    assert found is not None
    assert found[1] == 3
    assert training.commits.settle(None) == found[0]
    resumed = Training(run, resumed=3)
    assert resumed.state.restore(found[0], resumed.order) == (leaf(0), leaf(1), leaf(2))
    for name, tensor in training.model.state_dict().items():
        assert resumed.model.state_dict()[name].equal(tensor)


def flip(raw: Raw) -> None:
    data = bytearray(raw.read("model.safetensors"))
    data[len(data) // 2] ^= 1
    raw.write("model.safetensors", bytes(data))


DAMAGES: dict[str, Callable[[Raw], None]] = {
    "cut": lambda raw: raw.write("ledger.jsonl", raw.read("ledger.jsonl")[:-1]),
    "grown": lambda raw: raw.write("ledger.jsonl", raw.read("ledger.jsonl") + b"\n"),
    "missing": lambda raw: raw.delete("state.json"),
    "foreign": lambda raw: raw.write("more", b""),
    "no manifest": lambda raw: raw.delete(MANIFEST),
    "manifest cut": lambda raw: raw.write(MANIFEST, raw.read(MANIFEST)[:-1]),
    "manifest empty": lambda raw: raw.write(MANIFEST, b""),
}


def test_what_is_not_whole_is_passed_over(run: Path) -> None:
    trained(run, 2)
    place = commit_of(run, 2)
    raw = Raw(place)
    whole = {name: raw.read(name) for name in ("ledger.jsonl", "state.json", MANIFEST)}
    for damage, happens in DAMAGES.items():
        happens(raw)
        found = latest(run)
        assert found is not None
        assert found[1] == 1, damage
        with pytest.raises(Damaged):
            commit_folder.load(place)
        for name, data in whole.items():
            raw.write(name, data)
        if damage == "foreign":
            raw.delete("more")
        assert latest(run) == (place, 2)


def test_a_flipped_bit_is_found_on_loading_and_the_commit_put_aside(run: Path) -> None:
    trained(run, 2)
    flip(Raw(commit_of(run, 2)))
    found = latest(run)
    assert found is not None
    assert found[1] == 2, "names and sizes are right"
    resumed = Training(run, resumed=2)
    with pytest.raises(InfrastructureFailed, match=r"put aside.*model\.safetensors"):
        resumed.state.restore(found[0], resumed.order)
    assert steps(run) == [1]
    assert len(garbage_collection.inventory(run).leftovers) == 1
    # The step is reached again, and committed beside what was put aside.
    again = Training(run, resumed=1, keep=ALL)
    again.begin(2)
    again.commits.settle(None)
    assert steps(run) == [2, 1]
    [swept] = garbage_collection.sweep(run)
    assert swept.startswith(folder_name(2))
    assert steps(run) == [2, 1]
    commit_folder.load(commit_of(run, 2))


def test_what_lies_beyond_the_resumed_step_is_put_aside(run: Path) -> None:
    trained(run, 3)
    Training(run, resumed=1)
    assert steps(run) == [1]
    assert len(garbage_collection.inventory(run).leftovers) == 2


def test_whoever_was_overtaken_publishes_nothing(run: Path) -> None:
    training = trained(run, 1)
    run_lock.take_over(run)
    training.begin(2)
    with pytest.raises(GovrayError, match="taken over"):
        training.commits.settle(None)
    assert steps(run) == [1]
    assert not garbage_collection.inventory(run).leftovers


# What an object store alone can do to a commit


def writing(name: str, how: str) -> Any:
    """`BucketPath.writer`, of which objects of one name go wrong."""
    real = BucketPath.writer

    @contextmanager
    def writer(path: BucketPath) -> Iterator[Any]:
        if path.name != name:
            with real(path) as sink:
                yield sink
        elif how == "refused":
            raise OSError("SlowDown: Please reduce your request rate")
        elif how == "cut":
            pieces: list[bytes] = []
            yield lambda piece: pieces.append(bytes(piece))
            path.write_bytes(pieces[0][:-1])
        else:
            with real(path) as sink:
                yield sink
                raise OSError("the network broke in CompleteMultipartUpload")

    return writer


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("optimizer.safetensors", "refused"),
        ("optimizer.safetensors", "cut"),
        (MANIFEST, "cut"),
        (MANIFEST, "fails on closing"),
    ],
)
def test_a_put_that_fails_stops_the_run_and_leaves_nothing_that_loads(
    remote: Path, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = trained(remote, 1)
    before = objects(remote)
    monkeypatch.setattr(BucketPath, "writer", writing(name, how))
    training.begin(2)
    if (name, how) == (MANIFEST, "cut"):
        # Nobody compares the manifest: it does not parse, and the older commit is the newest.
        training.commits.settle(None)
        found = latest(remote)
        assert found is not None
        assert found[1] == 1
        return
    with pytest.raises(GovrayError, match="the checkpoint of step 2 could not be written") as told:
        training.commits.settle(None)
    assert "Earlier checkpoints are whole" in str(told.value)
    assert objects(remote) == before
    assert steps(remote) == [1]


def test_a_kill_in_an_upload_leaves_what_never_loads(remote: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from govray.train.checkpoint import commit_folder as checkpoint
        from govray.train.checkpoint.storage import storage_of
        def die():
            os.kill(os.getpid(), signal.SIGKILL)
        place = storage_of(Path(sys.argv[1])).place(7, (1, 1))
        checkpoint.commit(place, {"a": b"1", "b": b"22"}, check=die)
        """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(remote)], timeout=60, check=False
    )
    assert result.returncode == -signal.SIGKILL
    [(name, size)] = garbage_collection.inventory(remote).leftovers.items()
    assert name.startswith(f"{folder_name(7)}.1.1.")
    assert size == 3
    assert latest(remote) is None
    # The control: it is the manifest alone that is lacking.
    place, _ = storage.storage_of(remote).leftovers()[name]
    lacking = commit_folder.commit(
        storage.storage_of(remote).place(8, (1, 1)), {"a": b"1", "b": b"22"}
    )
    Raw(place).write(MANIFEST, Raw(commit_of(remote, 8)).read(MANIFEST))
    assert commit_folder.load(place).digest == lacking
    assert steps(remote) == [8, 7]


def test_what_an_attempt_that_was_shut_out_publishes_late_does_not_count(remote: Path) -> None:
    """Nor beyond what a later attempt has reached: it may be of a branch that was left."""
    place = storage.storage_of(remote).place
    for step, writer in [(5, (1, 1)), (10, (1, 1)), (15, (1, 2)), (20, (1, 2))]:
        commit_folder.commit(place(step, writer), {"a": b""})
    assert steps(remote) == [20, 15, 10, 5]
    for step in (15, 25):  # late
        commit_folder.commit(place(step, (1, 1)), {"a": b"late"})
    assert steps(remote) == [20, 15, 10, 5]
    assert commit_folder.load(commit_of(remote, 15)).files == {"a": b""}
    assert len(storage.storage_of(remote).leftovers()) == 2
    # The control: no later attempt, and it is simply the newest.
    commit_folder.commit(place(30, (1, 2)), {"a": b""})
    assert steps(remote)[0] == 30


def test_foreign_objects_are_neither_read_nor_deleted(remote: Path) -> None:
    trained(remote, 2)
    store = store_of(remote)
    foreign = {
        "notes.txt",
        "checkpoint_000000009",
        "checkpoint_000000009/manifest.json",
        "checkpoint_000000009.1.1/manifest.json",
        "checkpoint_000000009.1.1.zzzzzzzz/manifest.json",
        "other/checkpoint_000000009.1.1.00000000/manifest.json",
    }
    for name in foreign:
        store.write(store.root / name, b"{}", "test")
    assert steps(remote) == [2, 1]
    garbage_collection.apply(remote, Rules())
    garbage_collection.sweep(remote)
    assert foreign <= objects(remote)
    assert steps(remote) == [2]


def test_two_runs_of_one_name_do_not_meet(tmp_path: Path, bucket: str) -> None:
    """The second begins anew, though its folder has the name of the first."""
    for parent in ("a", "b"):
        run = tmp_path / parent / "tiny"
        run.mkdir(parents=True)
        storage.choose(run, bucket)
        assert latest(run) is None
        trained(run, 1)


def test_deleting_leaves_no_object_of_the_commit(remote: Path) -> None:
    trained(remote, 1)
    garbage_collection.commit_folder.remove(commit_of(remote, 1))
    assert objects(remote) == {"run.json"}


@pytest.mark.story
def test_a_server_that_died_is_not_taken_for_an_empty_store(
    tmp_path: Path,
) -> None:
    """A story because the client tries for some seconds."""
    server = object_server.start()
    try:
        run = tmp_path / "run"
        run.mkdir()
        storage.choose(run, server.bucket("gone"))
        trained(run, 1)
    finally:
        server.stop()
    with pytest.raises(InfrastructureFailed, match=r"the storage failed.*Check the URL") as told:
        latest(run)
    assert "s3://gone/commits" in str(told.value)


def test_a_store_that_refuses_is_not_an_empty_one(
    remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it, a run would begin again at step 0, or forget what it gated."""
    training = trained(remote, 1)
    place = commit_of(remote, 1)

    def refused(self: ObjectStore, path: BucketPath, where: str) -> dict[str, int]:
        raise InfrastructureFailed("the storage failed: AWS Error ACCESS_DENIED", where=where)

    monkeypatch.setattr(ObjectStore, "files_below", refused)
    with pytest.raises(InfrastructureFailed, match="the storage failed"):
        latest(remote)
    with pytest.raises(InfrastructureFailed, match="could not load the checkpoint"):
        training.state.restore(place, training.order)
    with pytest.raises(InfrastructureFailed):
        gating.resumed(remote, place)
    with pytest.raises(InfrastructureFailed):
        garbage_collection.inventory(remote)
    with pytest.raises(GovrayError, match="the storage failed"):
        training.commits.settle(None)
    # On resuming, rank 0 alone clears; the others hear of it in the agreement.
    resumed = Training(remote, resumed=1)
    assert "the storage failed" in str(resumed.commits.failure)


def test_a_run_keeps_the_place_that_it_began_with(remote: Path, bucket: str) -> None:
    before = (remote / storage.FILE).read_bytes()
    storage.choose(remote, bucket)
    assert (remote / storage.FILE).read_bytes() == before
    for other in (None, below(bucket, "elsewhere")):
        with pytest.raises(Refused, match="commits lie at s3://storage/commits"):
            storage.choose(remote, other)


def test_no_credential_is_written_or_travels(remote: Path) -> None:
    trained(remote, 1)
    store = store_of(remote)
    secret = object_server.CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    assert secret.encode() not in pickle.dumps([store, commit_of(remote, 1)])
    assert pickle.loads(pickle.dumps(commit_of(remote, 1))) == commit_of(remote, 1)
    for path in remote.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()
    for name in objects(remote):
        assert secret.encode() not in (store.root / name).read_bytes()
