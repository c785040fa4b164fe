"""One process at a time makes a folder; the others wait, then find it made.

``.NAME.lock`` beside the folder is locked (flock) meanwhile, and deleted by whoever had it. The
kernel releases it when a process dies, whatever the cause. Where locks do nothing nobody waits.
Then `govray.storage.staged_folder` alone keeps two makers apart: the second fails.

Source: flock(2).
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from govray.storage.atomic_file import make_folder
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place


@contextmanager
def folder_lock(target: Place) -> Iterator[None]:
    """Be the only one who makes ``target``, as long as the context lasts. Waits for others.
    On an object store nobody waits: there the folder's last object is created once."""
    if isinstance(target, BucketPath):
        yield
        return
    make_folder(target.parent)
    path = target.with_name(f".{target.name}.lock")
    while True:
        held = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _wait(held, target)
            if not _is_at(held, path):
                continue  # its last holder has deleted it
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(held)


def _wait(held: int, target: Path) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logging.getLogger(__name__).warning("waiting for another process that makes %s", target)
        fcntl.flock(held, fcntl.LOCK_EX)
    except OSError:
        return  # a file system without locks


def _is_at(held: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(held), path.stat())
    except FileNotFoundError:
        return False
