"""A folder filled beside its place, which then appears there as a whole.

It is filled under the hidden name ``.NAME.<hex>.partial``, readable by its owner only. When it is
complete, everything in it is synced, it takes the name, and the folder above is synced. Before the
name changes, a kill or a power cut leaves what was there before; after it, all of the new folder.

What a killed process left is deleted by the next one that stages the same folder. Each process
locks (flock) its own while it lives, so a live one's is never taken for a leftover. Where locks do
nothing, leftovers stay. Where they hold on one machine only, a process on another machine may
delete a live one's, which then fails.

Source: POSIX rename(2) and fsync(2); renameat2(2) of Linux, renamex_np(2) of macOS.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from govray.storage.atomic_file import make_folder, sync_folder
from govray.storage.bucket_path import BucketPath

_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS


@contextmanager
def staged_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """A new folder to fill, which becomes ``target`` when the context ends without an exception.

    It gets the permissions of the folder that it replaces, or those that the umask leaves.

    Args:
        target: Folders above it are made. Without ``replace`` it must not exist.
        replace: Whether to take the place of a folder that is there, in one step (`exchange`).
            Of a link, what it names is replaced.

    Raises:
        OSError: The system refuses. Where the folder above alone could not be synced, ``target`` is
            the new one; else it is as it was, and nothing else is left.
    """
    target = target.resolve() if replace else target
    make_folder(target.parent)
    delete_leftovers(target)
    staged, held = _begin(target)
    try:
        permissions = staged.stat().st_mode
        staged.chmod(0o700)
        yield staged
        replaces = replace and target.exists()
        staged.chmod(stat.S_IMODE(target.stat().st_mode if replaces else permissions))
        sync_all(staged)
        if replaces:
            exchange(staged, target)
        else:
            os.rename(staged, target)
        sync_folder(target.parent)
    finally:
        # The old folder after an exchange, the unfinished new one before it.
        shutil.rmtree(staged, ignore_errors=True)
        os.close(held)


def exchange(one: Path, two: Path) -> None:
    """Let two folders of one file system change names, at once where the system can.

    A file system that cannot gets three renames. A crash among them may leave no folder under the
    name ``two``; both are whole beside it, under hidden names.

    Raises:
        OSError: The system refuses; both have their old names.
    """
    if not _exchange_at_once(one, two):
        aside = one.with_name(f"{one.name}.old")
        os.rename(two, aside)
        try:
            os.rename(one, two)
        except OSError:
            os.rename(aside, two)
            raise
        os.rename(aside, one)


def _begin(target: Path) -> tuple[Path, int]:
    """An empty folder beside ``target``, and the descriptor that holds its lock."""
    while True:
        staged = target.with_name(f".{target.name}.{os.urandom(4).hex()}.partial")
        staged.mkdir()
        # Before it was locked, another process may have taken it for a leftover.
        with suppress(FileNotFoundError):
            held = os.open(staged, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_EX)
            if staged.exists():
                return staged, held
            os.close(held)


def delete_leftovers(target: Path) -> None:
    """Delete what killed processes left of earlier tries, as far as the system lets it."""
    left = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.partial")
    for name in os.listdir(target.parent):
        if not left.fullmatch(name):
            continue
        with suppress(OSError):
            held = os.open(target.parent / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(target.parent / name, ignore_errors=True)
            finally:
                os.close(held)


def sync_all(folder: Path) -> None:
    """Bring a folder and everything below it to the disk, what is deeper first."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(parent)


def _exchange_at_once(one: Path, two: Path) -> bool:
    """Whether the system could exchange the names. Nothing has changed if not."""
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(two)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return bool(library.renamex_np(first, second, _EXCHANGE) == 0)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        done = library.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _EXCHANGE)
        return bool(done == 0)
    return False


# A folder filled on the disk, which then is uploaded below a bucket; one file of it comes last.
#
# An object store cannot rename, so a folder there counts as whole once its last file is there.
# Where a folder takes another's place, that file is deleted first. A kill in between leaves a
# folder that nobody takes for one, and the next upload replaces it.


@contextmanager
def uploaded_folder(target: BucketPath, *, last: str) -> Iterator[Path]:
    """A new folder to fill, which becomes ``target`` when the context ends without an exception.

    Args:
        target: What was below it before is deleted.
        last: The file by which readers find the folder.
    """
    with tempfile.TemporaryDirectory(prefix="govray-") as name:
        folder = Path(name)
        yield folder
        files = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        (target / last).unlink(missing_ok=True)
        for gone in target.walk_files().keys() - files.keys():
            (target / gone).unlink(missing_ok=True)
        for below in sorted(files, key=lambda below: (below == last, below)):
            (target / below).upload(files[below])
