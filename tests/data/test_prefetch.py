"""Reading ahead: in order, bounded, and over when nobody listens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from govray.data.prefetch import prefetched


def reading_threads() -> int:
    return sum(thread.name.startswith("govray-prefetch") for thread in threading.enumerate())


def eventually(condition: object) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def test_no_more_is_read_than_was_said() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for i in range(100):
            read.append(i)
            yield i

    ahead = prefetched(items(), 3)
    assert next(ahead) == 0
    # One given, three waiting, one in the thread's hand.
    assert eventually(lambda: len(read) == 5)
    ahead.close()
    assert eventually(lambda: not reading_threads())
    assert len(read) == 5


def test_an_error_comes_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    ahead = prefetched(items(), 5)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)
    assert eventually(lambda: not reading_threads())


def test_a_forgotten_consumer_leaves_no_thread() -> None:
    ahead = prefetched(iter(range(10**9)), 2)
    next(ahead)
    assert reading_threads() == 1
    del ahead
    assert eventually(lambda: not reading_threads())
