"""Copy a run's folder once, and never open it again.

The folder is the submitter's. It may change while it is read, and hold links, pipes, devices and
files of many links. Each is refused. So is a file that grows while it is copied, or says beforehand
that it has too many bytes. What was copied is the attestor's own from then on.

The folder is opened once. Everything below it is opened by that descriptor, without following
links, so no name is looked up twice. Whether the copy belongs together is not judged here: digests
of the registered commit say that.

Source: openat(2), on O_NOFOLLOW and O_NONBLOCK.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import BinaryIO

from govray.errors import CouldNotCheck, GovrayError, Refused
from govray.governance.attestation.model_folder import check_name
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

_PIECE = 1 << 20
_KEPT_FREE = 1 << 30
"""Bytes of our own disk that no copy takes."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a run's folder may have at most, of what is copied."""

    files: int = 200_000
    depth: int = 8
    bytes: int = 1 << 40


def copy_once(
    above: Place,
    names: Sequence[str],
    target: Path,
    wanted: Callable[[str], bool],
    bounds: Bounds | None = None,
) -> int:
    """Copy the files of a run whose names are wanted. Returns how many bytes that was.

    Args:
        above: A folder of the operator's own; ``names`` lead from it to the run, one by one.
        target: A new folder.
        wanted: Told each file's relative name, and each folder's with a slash behind it.

    Raises:
        Refused: What is wanted is no regular file with one link, or beyond the bounds.
        CouldNotCheck: The folder is not there, the storage does not let us read it, or our own disk
            has no room for it.
    """
    bounds, run = bounds or Bounds(), "/".join(names)
    left, files_copied, size = bounds.bytes, 0, 0
    try:
        target.mkdir(mode=0o700)
        room = shutil.disk_usage(target).free - _KEPT_FREE
        full: type[GovrayError] = Refused if left <= room else CouldNotCheck
        left = min(left, room)
        files = (
            _objects(above / run, bounds)
            if isinstance(above, BucketPath)
            else _below(above, names, wanted, bounds)
        )
        for name, source in files:
            if not wanted(name):
                continue
            files_copied += 1
            if files_copied > bounds.files:
                raise Refused(f"more than {bounds.files} files", where=f"run {run}")
            path = target / check_name(name)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stream, due = source()
            with stream, open(path, "xb") as sink:
                left -= due
                if left < 0:  # holes take no space where it lies, and would here
                    raise full("more bytes than there is room for", where=f"run {run}")
                while piece := stream.read(min(_PIECE, due + 1)):
                    due -= len(piece)
                    size += len(piece)
                    if due < 0:
                        raise Refused("it grew while it was copied", where=name)
                    sink.write(piece)
    except OSError as error:
        raise CouldNotCheck(
            f"the run's folder cannot be copied: {error.strerror or error}",
            where=f"run {run}",
            do="Check that the attestor's account may read it, and has room for it",
        ) from None
    return size


Source = Callable[[], tuple[BinaryIO, int]]
"""Opens a file; how many bytes it says that it has."""


def _objects(run: BucketPath, bounds: Bounds) -> Iterator[tuple[str, Source]]:
    found = run.walk_files(most=2 * bounds.files)
    if len(found) == 2 * bounds.files:
        raise Refused(f"{2 * bounds.files} objects or more", where=f"run {run.name}")
    for name, listed in found.items():
        yield name, partial(_open_object, run / name, listed.st_size)


def _open_object(path: BucketPath, size: int) -> tuple[BinaryIO, int]:
    return path.open(), size


def _below(
    above: Path, names: Sequence[str], wanted: Callable[[str], bool], bounds: Bounds
) -> Iterator[tuple[str, Source]]:
    """Names lie in folders of the submitter's, so each is opened from the one before."""
    with ExitStack() as opened:
        folder = opened.enter_context(_opened(above, None))
        for name in names:
            folder = opened.enter_context(_opened(name, folder))
        yield from _walk(folder, "", wanted, bounds, count())


def _walk(
    folder: int, above: str, wanted: Callable[[str], bool], bounds: Bounds, seen: Iterator[int]
) -> Iterator[tuple[str, Source]]:
    if above.count("/") > bounds.depth:
        raise Refused(f"more than {bounds.depth} folders deep", where=printable_name(above))
    for entry in _entries(folder, bounds, above, seen):
        name = f"{above}{entry}"
        mode = os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if wanted(f"{name}/"):
                with _opened(entry, folder) as inside:
                    yield from _walk(inside, f"{name}/", wanted, bounds, seen)
        elif wanted(name):
            yield name, partial(_open_file, entry, folder, name)


def _entries(folder: int, bounds: Bounds, where: str, seen: Iterator[int]) -> list[str]:
    """The names in a folder, in order. Of all folders no more are read than the bounds allow."""
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            names.append(entry.name)
            if next(seen) > 2 * bounds.files:
                raise Refused(f"more than {2 * bounds.files} names", where=printable_name(where))
    return sorted(names)


@contextmanager
def _opened(name: Path | str, above: int | None) -> Iterator[int]:
    descriptor = os.open(name, _FOLDER, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_file(name: str, folder: int, where: str) -> tuple[BinaryIO, int]:
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        raise Refused(
            f"it cannot be opened as a file: {error.strerror}", where=printable_name(where)
        ) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        what = "it has another name elsewhere" if stat.S_ISREG(found.st_mode) else "it is no file"
        raise Refused(what, where=printable_name(where), do="A run's files are regular files")
    return os.fdopen(descriptor, "rb"), found.st_size


def printable_name(name: str) -> str:
    """A file's name as a refusal may show it: bounded, and without anything but plain letters."""
    return re.sub(r"[^A-Za-z0-9._/ -]", "?", name)[:200]
