"""Reading ahead in a thread: the next items are ready when they are asked for.

Invariants:

* Items come in order, each once, and an exception comes where the item would have.
* At most ``depth`` items wait, beside the one that is being read. Whichever way the consumer ends,
  no further item is begun.

Nothing is read before the first item is asked for. One thread is enough: readers spend their time
in pyarrow and hashing, which release the interpreter lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """``items``, of which up to ``depth`` are produced before they are asked for."""
    end: Any = object()
    reader = ThreadPoolExecutor(1, thread_name_prefix="govray-prefetch")
    try:
        ahead = deque(reader.submit(next, items, end) for _ in range(depth + 1))
        while (item := ahead.popleft().result()) is not end:
            ahead.append(reader.submit(next, items, end))
            yield item
    finally:
        reader.shutdown(wait=False, cancel_futures=True)
