"""Opening files of folders that others write into, such as a run's: only what is a regular file.

A pipe would keep who opens it until somebody writes, and a device has no end. So whoever reads the
folders of many, a queue or an index, would stop at one. There is no moment between look and open.

Source: open(2), on O_NONBLOCK and pipes.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from govray.storage.place import Place

MOST = 1 << 30
"""Bytes that are read whole. A file with holes may say a million times that, and take no space."""


def open_regular(path: Place) -> BinaryIO:
    """The file, open at its beginning to be read.
    Raises ``OSError``: it is no regular file, or the storage refuses."""
    if not isinstance(path, Path):
        return path.open()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.ENXIO, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def open_below(root: Path, name: str) -> BinaryIO:
    """The file ``name`` of a folder, whose parts are divided by slashes. None of them is a link.

    Part by part, each in the open folder before it: nobody can exchange one for a link meanwhile.
    Raises ``OSError``: as `open_regular`; or a part is a link."""
    held = _below(root, name, os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(held).st_mode):
        os.close(held)
        raise OSError(errno.ENXIO, "it is no regular file", name)
    return os.fdopen(held, "rb")


def folder_below(root: Path, name: str) -> int:
    """The folder ``name`` of a folder, opened as `open_below` opens a file."""
    return _below(root, name, os.O_DIRECTORY)


def _below(root: Path, name: str, last: int) -> int:
    """``last``: flags of the last part."""
    *folders, file = name.split("/")
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for flags, part in [*((os.O_DIRECTORY, each) for each in folders), (last, file)]:
            child = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=held)
            os.close(held)
            held = child
    except BaseException:
        os.close(held)
        raise
    return held


def read_regular(path: Place, limit: int = MOST) -> bytes:
    """Its bytes; an object's in one request.
    Raises ``OSError``: as `open_regular`; or it says that it has more than ``limit`` bytes."""
    if not isinstance(path, Path):
        return path.read_bytes()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit >> 20} MiB", str(path))
        return file.read(min(limit, size + 1))  # takes as much memory
