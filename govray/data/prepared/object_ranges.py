"""One version of an object, as a file whose ranges are fetched before they are read.

The first request fetches the end of the object, where Parquet has its footer, and learns the tag.
All later requests ask for that version: a store refuses them once the object has changed. So
nothing is put together from two versions.

Threads fetch, since obstore waits without the interpreter lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from govray.storage.bucket_path import BucketPath, ObjectReader
from govray.storage.place import Place

T = TypeVar("T")
P = TypeVar("P", bound=Place)

CONNECTIONS = 16
"""Requests of one process at a time."""
PIECE = 1 << 24
"""Bytes of the largest request."""
END = 1 << 18
"""Bytes of the first: the footer of a shard of 32 MiB of text is smaller."""


class ObjectRanges(ObjectReader):
    """A file that can seek, over what was fetched; what was not is fetched when it is read.

    Raises:
        FileNotFoundError: It is not there, now or at a later request.
        govray.storage.bucket.Replaced: It has changed since.
    """

    def __init__(self, path: BucketPath) -> None:
        end, status = path.read_end(END)
        super().__init__(status.st_size)
        self._path, self._tag = path, status.tag
        self._held: dict[int, memoryview] = {self.size - len(end): end}
        self._lock = threading.Lock()

    @property
    def is_held(self) -> bool:
        """Whether the first request fetched all of it."""
        return 0 in self._held

    def fetch(self, start: int, stop: int) -> None:
        """Fetch a range, in one request, and hold it."""
        data = self._path.read_range(start, stop, tag=self._tag)
        with self._lock:
            self._held[start] = data

    def fetch_all(self) -> bytes:
        """All bytes, in as many requests at a time as a process may have."""
        [(held, end)] = self._held.items()

        def piece(start: int) -> memoryview:
            return self._path.read_range(start, min(start + PIECE, held), tag=self._tag)

        pieces = [submit(piece, start) for start in range(0, held, PIECE)]
        return b"".join([*(each.result() for each in pieces), end])

    def drop(self, start: int) -> None:
        """Let go of the range that was fetched from ``start`` on."""
        with self._lock:
            self._held.pop(start, None)

    def read_at(self, start: int, stop: int) -> memoryview:
        with self._lock:
            for first, data in self._held.items():
                if first <= start and stop <= first + len(data):
                    return data[start - first : stop - first]
        return self._path.read_range(start, stop, tag=self._tag)


def submit(work: Callable[..., T], *given: Any, waits: bool = False) -> Future[T]:
    """Do ``work`` in one of the threads that fetch.
    ``waits``: whether it waits for others of these threads itself; then it gets one of its own."""
    return _threads(os.getpid(), waits).submit(work, *given)


def at_once(work: Callable[[P], T], places: Sequence[P]) -> list[T]:
    """``work`` of each place, in order; below a bucket several at a time."""
    if not any(isinstance(each, BucketPath) for each in places):
        return [work(each) for each in places]
    return [each.result() for each in [submit(work, each) for each in places]]


@lru_cache(maxsize=2)
def _threads(process: int, waits: bool) -> ThreadPoolExecutor:
    """This process's: a fork has none of its parent's threads."""
    return ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="govray-fetch")
