"""The logs that a run's folder keeps, read by parts: ``<run>/logs/…`` on a disk or a store.

The folder is written by code that trains, so nothing in it is trusted. Names are of two forms, and
on a disk neither the folder nor a file in it may be a link. A part has bounds, and begins and ends
with a line.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from govray.storage.place import place

FOLDER = "logs"
NAME = r"^(driver-[0-9]{1,9}|rank-[0-9]{1,9}-[0-9]{1,9})\.log$"
MOST_LOGS = 1000
MOST_BYTES = 1 << 20
"""Of what one answer is made of."""
MOST_WHOLE = 64 << 20
"""Of what is read of a whole log; one that govray writes has a quarter."""
MOST_SEARCHED = 8 << 20
"""Bytes that one search reads; the next goes on behind them."""

_NAME = re.compile(NAME)

Read = Callable[[int, int], bytes]
"""Bytes from an offset, up to a number of them."""


@dataclass(frozen=True)
class KeptLog:
    name: str
    size: int


@dataclass(frozen=True)
class LogLine:
    at: int
    text: str


@dataclass(frozen=True)
class LogPart:
    """Lines of a log. ``next``: where the next part begins; the size if nothing follows yet."""

    size: int
    begin: int
    next: int
    lines: tuple[LogLine, ...]


def listed(run_folder: str) -> list[KeptLog]:
    """The logs of a run, drivers first, then by attempt and rank; none if out of reach."""
    try:
        folder = place(run_folder)
        if isinstance(folder, Path):
            with _folder(folder) as held:
                found = [_size(name, held) for name in os.listdir(held) if _NAME.fullmatch(name)]
                kept = [each for each in found if each is not None]
        else:
            kept = [
                KeptLog(name, status.st_size)
                for name, status in (folder / FOLDER).walk_files().items()
                if _NAME.fullmatch(name)
            ]
    except (OSError, ValueError):
        return []
    return sorted(kept, key=lambda each: _order(each.name))[:MOST_LOGS]


def read(
    run_folder: str, name: str, *, start: int | None, most: int, search: str = ""
) -> LogPart | None:
    """A part of a log; None if there is no such log.

    Args:
        start: The byte to begin at, from another part. None: the last lines, or with ``search``
            the beginning.
        search: Only lines that have this text. Upper and lower case are the same.
    """
    try:
        with _log(run_folder, name) as (log, size):
            return _part(log, size, start, most, search)
    except (OSError, ValueError):
        return None


def whole(run_folder: str, name: str) -> Iterator[bytes] | None:
    """All that a log has at this moment, piece by piece; None if there is no such log.
    Nothing is open between two pieces."""
    try:
        with _log(run_folder, name) as (_, size):
            return _pieces(run_folder, name, min(size, MOST_WHOLE))
    except (OSError, ValueError):
        return None


def _pieces(run_folder: str, name: str, size: int) -> Iterator[bytes]:
    at = 0
    while at < size:
        with _log(run_folder, name) as (log, _):
            piece = log(at, min(MOST_BYTES, size - at))
        if not piece:
            return  # it was shortened
        at += len(piece)
        yield piece


@contextmanager
def _log(run_folder: str, name: str) -> Iterator[tuple[Read, int]]:
    """A log, open, and its size. Raises ``OSError`` or ``ValueError``: there is no such log."""
    if not _NAME.fullmatch(name):
        raise ValueError(name)
    folder = place(run_folder)
    if isinstance(folder, Path):
        with _folder(folder) as held, _file(name, held) as (descriptor, size):
            yield lambda at, count: os.pread(descriptor, count, at), size
        return
    target = folder / FOLDER / name
    size = target.stat().st_size
    yield lambda at, count: bytes(target.read_range(at, min(at + count, size))), size


def _part(read: Read, size: int, start: int | None, most: int, search: str) -> LogPart:
    if start is None and not search:
        return _tail(read, size, most)
    begin = at = min(start or 0, size)
    wanted = search.casefold()
    found: list[LogLine] = []
    limit = min(size, begin + (MOST_SEARCHED if search else MOST_BYTES))
    while at < limit and len(found) < most:
        data = read(at, min(MOST_BYTES, limit - at))
        whole = data.rfind(b"\n") + 1
        if not whole:
            # Being written; or longer than any line of ours, which is passed over.
            at = at if at + len(data) >= size else at + len(data)
            break
        for line in data[:whole].splitlines(keepends=True):
            text = line.rstrip(b"\n").decode("utf-8", "replace")
            if not wanted or wanted in text.casefold():
                found.append(LogLine(at, text))
            at += len(line)
            if len(found) >= most:
                break
    return LogPart(size, begin, at, tuple(found))


def _tail(read: Read, size: int, most: int) -> LogPart:
    begin = max(0, size - MOST_BYTES)
    data = read(begin, size - begin) if size else b""
    if begin:
        cut = data.find(b"\n") + 1
        begin, data = begin + cut, data[cut:]
    end = begin + data.rfind(b"\n") + 1
    lines: list[LogLine] = []
    at = begin
    for line in data[: end - begin].splitlines(keepends=True):
        lines.append(LogLine(at, line.rstrip(b"\n").decode("utf-8", "replace")))
        at += len(line)
    kept = tuple(lines[-most:])
    return LogPart(size, kept[0].at if kept else end, end, kept)


@contextmanager
def _folder(run_folder: Path) -> Iterator[int]:
    """The folder of logs, open; a link does not count."""
    held = os.open(run_folder / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield held
    finally:
        os.close(held)


@contextmanager
def _file(name: str, folder: int) -> Iterator[tuple[int, int]]:
    """A file in the folder, open, and its size; neither a link nor what is no file counts."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("no file")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def _size(name: str, folder: int) -> KeptLog | None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return KeptLog(name, status.st_size) if stat.S_ISREG(status.st_mode) else None


def _order(name: str) -> tuple[int, ...]:
    numbers = [int(each) for each in re.findall(r"[0-9]+", name)]
    return (0, *numbers) if name.startswith("driver") else (1, *reversed(numbers))
