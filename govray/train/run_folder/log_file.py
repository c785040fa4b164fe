"""A file of lines that grows at its end: one file on a disk, segments on an object store.

Objects cannot be appended to. So on a store the file is a folder of segments, each named for the
offset at which it begins. An append writes the last segment anew. A full segment never changes
unless the file is rewritten from within it.

A kill between two writes loses lines at the end, never lines before others.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from govray.storage.atomic_file import write_whole
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

SEGMENT_BYTES = 1 << 16
"""A segment of this size is followed by another. Each append sends what it has so far."""


class LogFile:
    """The lines at a place; one process writes them.
    ``path``: on a store, the folder of segments."""

    def __init__(self, path: Place) -> None:
        self._path = path
        self._segments: dict[int, tuple[int, bytes]] = {}  # begin → length, SHA-256
        self._last = b""

    def read(self) -> bytes:
        """All of it; empty if there is none."""
        if isinstance(self._path, Path):
            return self._path.read_bytes() if self._path.exists() else b""
        self._segments.clear()
        found: list[bytes] = []
        size = 0
        for name in sorted(self._path.walk_files()):
            if name != _name(size):
                continue  # what a kill left behind a gap
            data = (self._path / name).read_bytes()
            self._note(size, data)
            found.append(data)
            size += len(data)
        return b"".join(found)

    def replace(self, data: bytes) -> None:
        """Let ``data`` be all of it. On a disk whole or not at all."""
        if isinstance(self._path, Path):
            write_whole(self._path, data)
        else:
            self._write(self._path, 0, data)

    def write_from(self, offset: int, data: bytes, *, durable: bool) -> None:
        """Let ``data`` be what follows from ``offset`` on.

        Args:
            offset: At most the length.
            data: Whole lines.
            durable: Whether it is on the disk when this returns. On a store it always is.
        """
        if isinstance(self._path, BucketPath):
            self._write(self._path, offset, data)
            return
        with self._path.open("r+b") as file:
            file.seek(offset)
            file.truncate()
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())

    def _write(self, path: BucketPath, offset: int, data: bytes) -> None:
        begin = max((each for each in self._segments if each <= offset), default=0)
        if kept := offset - begin:
            data = self._held(path, begin)[:kept] + data
        pieces = _cut(begin, data)
        for start in sorted(pieces):
            if self._segments.get(start) != _summary(pieces[start]):
                break
            self._last = pieces.pop(start)  # it is there
            begin = start + 1
        # What is old behind the first new byte goes before that byte is written.
        for gone in sorted((each for each in self._segments if each >= begin), reverse=True):
            if gone not in list(pieces)[:1]:
                (path / _name(gone)).unlink(missing_ok=True)
                del self._segments[gone]
        for start, piece in pieces.items():
            (path / _name(start)).write_bytes(piece)
            self._note(start, piece)

    def _held(self, path: BucketPath, begin: int) -> bytes:
        """The bytes of a segment; of the last one they are at hand."""
        if begin == max(self._segments):
            return self._last
        return (path / _name(begin)).read_bytes()

    def _note(self, begin: int, data: bytes) -> None:
        self._segments[begin] = _summary(data)
        if begin == max(self._segments):
            self._last = data


def _cut(begin: int, data: bytes) -> dict[int, bytes]:
    """Begin → bytes of the segments that ``data`` makes, cut behind newlines."""
    pieces: dict[int, bytes] = {}
    while len(data) > SEGMENT_BYTES:
        stop = data.find(b"\n", SEGMENT_BYTES - 1) + 1
        if not 0 < stop < len(data):
            break
        pieces[begin], data = data[:stop], data[stop:]
        begin += stop
    return pieces | {begin: data}


def _name(begin: int) -> str:
    return f"{begin:015d}.jsonl"


def _summary(data: bytes) -> tuple[int, bytes]:
    return len(data), hashlib.sha256(data).digest()
