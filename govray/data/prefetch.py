"""Reading ahead in a thread: the next items are ready when they are asked for.

Invariants:

* Items come in order, each once, and an exception comes where the item would have.
* At most ``depth`` items wait. The thread ends soon after its consumer does, by any way.

Nothing is read before the first item is asked for. One thread is enough: readers spend their time
in pyarrow and hashing, which release the interpreter lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

Item = TypeVar("Item")

_PATIENCE = 0.1
"""Seconds between two looks of a waiting thread at whether it is still needed."""


def prefetched(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """``items``, of which up to ``depth`` are produced before they are asked for."""
    filling = _Filling(items, depth)
    filling.start()
    try:
        while True:
            item, error = filling.take()
            if error is not None:
                raise error
            if item is None:
                return
            yield item[0]
    finally:
        filling.unwanted.set()


class _Filling(threading.Thread, Generic[Item]):
    """Puts (one item, None), (None, an error) or, at the end, (None, None) into a queue."""

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        super().__init__(name="govray-prefetch", daemon=True)
        self.unwanted = threading.Event()
        self._items = items
        self._ready: Queue[tuple[tuple[Item] | None, Exception | None]] = Queue(depth)

    def run(self) -> None:
        try:
            for item in self._items:
                if not self._put((item,), None):
                    return
        except Exception as error:  # the consumer must get every exception
            self._put(None, error)
        else:
            self._put(None, None)

    def take(self) -> tuple[tuple[Item] | None, Exception | None]:
        while True:
            try:
                return self._ready.get(timeout=_PATIENCE)
            except Empty:
                if not self.is_alive() and self._ready.empty():  # it always ends with an item
                    return None, RuntimeError("the reading thread ended")

    def _put(self, item: tuple[Item] | None, error: Exception | None) -> bool:
        while not self.unwanted.is_set():
            try:
                self._ready.put((item, error), timeout=_PATIENCE)
            except Full:
                continue
            return True
        return False
