"""A file written whole or not at all, and on the disk when the call returns.

The bytes go to a hidden file beside the place, ``.NAME.<hex>.tmp``. It is synced, takes the name,
and then the folder is synced. Before the name changes, a kill or a power cut leaves what was there
before; after it, all of the new bytes. A kill also leaves the hidden file, which nothing reads.

An object of a store is whole or absent by itself: one request writes it.

Writers of one name do not wait for each other: each writes a file of its own, and the last stays.

Source: POSIX rename(2), link(2) and fsync(2).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

_NAME = 48
"""Characters of the name that the hidden file repeats: with the rest, at most 255 bytes."""


def write_whole(path: Place, data: bytes, *, mode: int | None = None, replace: bool = True) -> None:
    """Put ``data`` at ``path``, whole or not at all.

    Args:
        mode: Permission bits; by default as the process's umask has them.
        replace: Whether to take the place of a file that is there.

    Raises:
        FileExistsError: The name is taken, even by a dangling link, and ``replace`` is False.
        OSError: The system refuses. Where the folder alone could not be synced, the file is there.
    """
    if isinstance(path, BucketPath):
        _ = path.write_bytes(data) if replace else path.create(data)
        return
    staged = stage_file(path, data, mode=mode)
    try:
        if replace:
            os.replace(staged, path)
        else:
            # A link fails where the name is taken. To look first and then rename would race.
            os.link(staged, path)
    finally:
        staged.unlink(missing_ok=True)  # a rename has taken it along
    sync_folder(path.parent)


def stage_file(path: Path, data: bytes, *, mode: int | None = None) -> Path:
    """Put ``data`` beside ``path``, synced; return the file, which a rename puts at ``path``."""
    staged = path.with_name(f".{path.name[:_NAME]}.{os.urandom(8).hex()}.tmp")
    # Nobody else may read it before it has the permissions that were asked for.
    first = 0o666 if mode is None else 0o600
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, first)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            if mode is not None:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    return staged


def make_folder(path: Place, *, mode: int = 0o777) -> None:
    """Make a folder and those above it, as far as they are missing; synced.
    ``mode``: permission bits of ``path``, less what the process's umask takes."""
    if isinstance(path, BucketPath):
        return  # a store has none
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode, exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: str | Path) -> None:
    """Bring a folder's entries to the disk: a new file, a rename, a deletion."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync a folder
            raise
    finally:
        os.close(descriptor)
