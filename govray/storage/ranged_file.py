"""A file of a disk, or an object of a store, opened once and read by ranges of its bytes.

An object that is replaced meanwhile gives no more bytes: each request names the version that was
opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.storage.regular_file import open_below


@dataclass(frozen=True)
class RangedFile:
    """``read``: the bytes from an offset up to another, fewer only where the file ends. ``close``:
    called once nobody reads any more."""

    size: int
    read: Callable[[int, int], bytes]
    close: Callable[[], None]


def open_ranged(root: Place, name: str) -> RangedFile:
    """The file ``name`` below ``root``, where no part of the name is a link.
    Raises ``OSError``: it is absent, it is no regular file, or the storage refuses."""
    if isinstance(root, BucketPath):
        target = root / name
        found = target.stat()
        return RangedFile(
            found.st_size,
            lambda start, stop: bytes(target.read_range(start, stop, tag=found.tag)),
            lambda: None,
        )
    file = open_below(root, name)
    return RangedFile(
        os.fstat(file.fileno()).st_size,
        lambda start, stop: os.pread(file.fileno(), stop - start, start),
        file.close,
    )
