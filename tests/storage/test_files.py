"""Files and folders that appear whole: killed before each call, and in the order of their syncs."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import pytest

from govray.cli import user_files
from govray.errors import UsageError
from govray.platform.store.tile_storage import TileFolder
from govray.storage import staged_folder
from govray.storage.atomic_file import write_whole
from govray.train.run_folder import events
from tests.support.small_process import small_process

OLD, NEW = b"what was there before", b"what is written now, and longer"
OLD_FOLDER = {"a": OLD, "sub/b": OLD}
NEW_FOLDER = {"a": NEW, "sub/c": NEW}

Found: TypeAlias = bytes | dict[str, bytes] | None

CALLS = {"open", "write", "flush", "close", "fsync", "chmod", "fchmod", "flock", "truncate"} | {
    *("mkdir", "rmdir", "rename", "replace", "link", "unlink", "remove")
}
"""What changes the disk, or its order. Between two of these it stays the same."""


def watched(number: int, act: Callable[[], object]) -> None:
    """Run ``act``, and kill this process before its ``number``-th call."""
    write, seen = os.write, 0
    os.write = lambda descriptor, data: write(descriptor, data[:20])

    def watch(frame: FrameType, event: str, called: Any) -> None:
        nonlocal seen
        if event == "c_call" and called.__name__ in CALLS:
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    act()


class Kills:
    """Runs an act in a fork that is killed before a call of it."""

    def __init__(self, status_of: Callable[[Callable[[], object]], int]) -> None:
        self._status_of = status_of

    def at(self, number: int, act: Callable[[], object]) -> bool:
        """Run ``act`` in a fork that is killed before its ``number``-th call; whether it was."""
        code = self._status_of(partial(watched, number, act))
        assert code in (0, -signal.SIGKILL)
        return code != 0

    def found_after_each(
        self,
        path: Path,
        act: Callable[[], object],
        read: Callable[[], Found],
        old: Callable[[], object],
    ) -> list[Found]:
        """What ``read`` finds after each kill of ``act``, which begins with ``old`` each time.

        Then ``act`` is done once more, which has to succeed.
        """
        found, number = [], 0
        while True:
            number += 1
            clear(path)
            old()
            killed = self.at(number, act)
            found.append(read())
            act()
            assert read() in (NEW, NEW_FOLDER), "the next call did not succeed"
            assert not list(path.parent.glob(".*.partial")), "a leftover stays"
            if not killed:
                assert number >= 5
                return found


@pytest.fixture(scope="module")
def kills() -> Iterator[Kills]:
    with small_process() as status_of:
        yield Kills(status_of)


def content(path: Path) -> Found:
    """The bytes of a file, those of all files of a folder, or None."""
    if path.is_dir():
        files = (each for each in path.rglob("*") if each.is_file())
        return {each.relative_to(path).as_posix(): each.read_bytes() for each in files}
    return path.read_bytes() if path.exists() else None


def clear(path: Path) -> None:
    """Delete a file or folder, and all that is hidden beside it."""
    for each in (path, *path.parent.glob(".*")):
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink(missing_ok=True)


def assert_old_then_new(found: list[Found], old: Found, new: Found) -> None:
    """Kills fell on both sides of one moment, and none left anything else."""
    assert all(each in (old, new) for each in found), "half of it is there"
    turn = found.index(new)
    assert 0 < turn < len(found) - 1
    assert all(each == old for each in found[:turn])
    assert all(each == new for each in found[turn:])


@pytest.mark.parametrize(("before", "mode"), [(None, None), (OLD, 0o600)])
def test_a_killed_write_leaves_the_old_file_or_the_new_one(
    kills: Kills, tmp_path: Path, before: bytes | None, mode: int | None
) -> None:
    path = tmp_path / "file"
    found = kills.found_after_each(
        path,
        partial(write_whole, path, NEW, mode=mode),
        lambda: content(path),
        lambda: before is None or path.write_bytes(before),
    )
    assert_old_then_new(found, before, NEW)


def write_in_place(path: Path) -> None:
    with path.open("wb") as file:
        file.write(NEW[:20])
        file.flush()
        file.write(NEW[20:])


def test_a_write_in_place_would_leave_half_of_it(kills: Kills, tmp_path: Path) -> None:
    """The negative control: the same test of a file that is opened and written in two calls."""
    path = tmp_path / "file"
    naive = partial(write_in_place, path)
    found = kills.found_after_each(
        path, naive, lambda: content(path), lambda: path.write_bytes(OLD)
    )
    with pytest.raises(AssertionError, match="half of it is there"):
        assert_old_then_new(found, OLD, NEW)
    assert NEW[:20] in found


def fill(folder: Path, files: dict[str, bytes] = NEW_FOLDER) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def stage(path: Path, *, replace: bool = False) -> None:
    if replace or not path.exists():
        with staged_folder.staged_folder(path, replace=replace) as folder:
            fill(folder)


def test_a_killed_replacement_leaves_the_old_folder_or_the_new_one(
    kills: Kills, tmp_path: Path
) -> None:
    path = tmp_path / "folder"
    found = kills.found_after_each(
        path,
        partial(stage, path, replace=True),
        lambda: content(path),
        lambda: fill(path, OLD_FOLDER),
    )
    assert_old_then_new(found, OLD_FOLDER, NEW_FOLDER)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]  # nothing hidden either


def stage_without_exchange(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_folder, "_exchange_at_once", lambda one, two: False)
        stage(path, replace=True)


def test_without_an_exchange_a_kill_loses_neither_folder(kills: Kills, tmp_path: Path) -> None:
    path = tmp_path / "folder"

    def beside() -> Found:
        here = content(path)
        if here is None:
            [aside] = tmp_path.glob(".folder.*.partial.old")
            assert content(aside) == OLD_FOLDER
            [new] = tmp_path.glob(".folder.*.partial")
            assert content(new) == NEW_FOLDER
        return here

    found = kills.found_after_each(
        path, partial(stage_without_exchange, path), beside, lambda: fill(path, OLD_FOLDER)
    )
    between = [each for each in found if each is not None]
    assert_old_then_new(between, OLD_FOLDER, NEW_FOLDER)
    assert None in found


def fill_in_place(path: Path) -> None:
    path.mkdir(exist_ok=True)
    fill(path)


def test_a_folder_filled_in_place_would_be_there_in_part(kills: Kills, tmp_path: Path) -> None:
    """The negative control of the folders."""
    path = tmp_path / "folder"
    naive = partial(fill_in_place, path)
    found = kills.found_after_each(path, naive, lambda: content(path), lambda: None)
    with pytest.raises(AssertionError, match="half of it is there"):
        assert_old_then_new(found, None, NEW_FOLDER)


def stage_killed_at_its_rename(path: Path) -> None:
    os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # in a fork, which ends with it
    stage(path)


def test_leftovers_of_a_killed_staging_go_and_nothing_else_does(
    kills: Kills, tmp_path: Path
) -> None:
    path = tmp_path / "folder"
    others = [
        ".folder",
        ".folder.txt",
        ".folder.0123.partial",
        ".folder.0123456z.partial",
        ".folder.x.01234567.partial",
        ".folder.01234567.partial.old",
        ".other.01234567.partial",
        "folder.01234567.partial",
    ]
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(OLD)
    assert kills.at(1 << 30, partial(stage_killed_at_its_rename, path))
    assert len(list(tmp_path.iterdir())) == len(others) + 1
    stage(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*others, "folder"])
    assert all((tmp_path / name / "file").read_bytes() == OLD for name in others)


def test_of_two_that_stage_at_once_neither_touches_the_others(tmp_path: Path) -> None:
    path = tmp_path / "folder"

    def both() -> None:
        with staged_folder.staged_folder(path) as first:
            fill(first, OLD_FOLDER)
            stage(path)  # in the meantime, with a folder of its own
            assert content(first) == OLD_FOLDER

    with pytest.raises(OSError, match="not empty"):
        both()
    assert content(path) == NEW_FOLDER
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_without_locks_nothing_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(descriptor: int, mode: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(staged_folder.fcntl, "flock", none)
    (tmp_path / ".folder.01234567.partial").mkdir()
    stage(tmp_path / "folder")
    assert content(tmp_path / "folder") == NEW_FOLDER
    assert (tmp_path / ".folder.01234567.partial").exists()


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt()])
def test_an_exception_leaves_the_old_folder_and_nothing_beside(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "folder"
    fill(path, OLD_FOLDER)

    def interrupted() -> None:
        with staged_folder.staged_folder(path, replace=True) as folder:
            fill(folder)
            raise error

    with pytest.raises(type(error)):
        interrupted()
    assert content(path) == OLD_FOLDER
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@contextmanager
def recorded() -> Iterator[list[tuple[str, Any]]]:
    """The inodes that are synced, and the paths that are renamed to, in their order."""
    log: list[tuple[str, Any]] = []
    fsync, exchange = os.fsync, staged_folder.exchange

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        log.append(("sync", os.fstat(descriptor).st_ino))

    def named(real: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def call(source: Any, target: Any) -> None:
            real(source, target)
            log.append(("name", Path(target)))

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(staged_folder, "exchange", named(exchange))
        for name in ("rename", "replace", "link"):
            patch.setattr(os, name, named(getattr(os, name)))
        yield log


def assert_durable(log: list[tuple[str, Any]], path: Path) -> None:
    """All below ``path`` was synced before it got its name, and the folder above after it."""
    turn = log.index(("name", path))
    for each in (path, *path.rglob("*")):
        assert ("sync", each.stat().st_ino) in log[:turn], f"{each.name} may be empty"
    assert ("sync", path.parent.stat().st_ino) in log[turn:], "the name may be lost"


WRITES: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: write_whole(path, NEW),
    "a new file": lambda path: write_whole(path, NEW, mode=0o600, replace=False),
    "a folder": stage,
    "a replaced folder": lambda path: (fill(path, OLD_FOLDER), stage(path, replace=True)),
    "a tile": lambda path: TileFolder(path.parent).replace(path.name, NEW),
    "a file that a user named": lambda path: user_files.write(path, NEW),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_content_is_synced_before_the_name_and_the_folder_after_it(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    with recorded() as log:
        write(tmp_path / "it")
    assert_durable(log, tmp_path / "it")


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("omitted", [stat.S_ISREG, stat.S_ISDIR], ids=["files", "folders"])
def test_without_a_sync_that_would_be_seen(
    tmp_path: Path, write: Callable[[Path], object], omitted: Callable[[int], bool]
) -> None:
    """The negative control: the same without the syncs of files, or of folders."""
    with recorded() as log, pytest.MonkeyPatch.context() as patch:
        synced = os.fsync

        def some(descriptor: int) -> None:
            if not omitted(os.fstat(descriptor).st_mode):
                synced(descriptor)

        patch.setattr(os, "fsync", some)
        write(tmp_path / "it")
    with pytest.raises(AssertionError, match=r"may be (empty|lost)"):
        assert_durable(log, tmp_path / "it")


def test_the_first_line_of_a_log_is_synced_with_its_name(tmp_path: Path) -> None:
    stop = events.Stopped(at="2026-11-11T00:00:00Z", step=1)
    with recorded() as log:
        events.append(tmp_path, stop)
        events.append(tmp_path, stop)
    file, folder = ((tmp_path / events.FILE).stat().st_ino, tmp_path.stat().st_ino)
    assert log == [("sync", file), ("sync", folder), ("sync", file)]


def test_a_taken_name_is_refused_even_if_it_is_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file", NEW, replace=False)
    with pytest.raises(UsageError, match="already exists"):
        user_files.write(tmp_path / "file", NEW, replace=False)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
