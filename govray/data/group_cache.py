"""Row groups that were decoded and verified, kept for the steps that follow.

A run of steps ends in the middle of a window of the plan's order. So the next run wants row groups
of that window again. The least recently used leave first, by bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from govray.data.shard_file import Rows


class GroupKey(NamedTuple):
    """What is kept: the content of one row group, as one file had it.

    Attributes:
        path: The shard.
        stamp: When it was written, in nanoseconds: a shard written anew is another one.
        group: Index of the row group.
        digest: What its rows were verified against: their digest, or that of the list in which it
            stands.
        dtype: The storage dtype that they were read in.
    """

    path: str
    stamp: int
    group: int
    digest: str
    dtype: str


class GroupCache:
    """Verified rows by `GroupKey`; threads may share it.
    ``most_bytes``: bytes of token ids held at most."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[GroupKey, Rows] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._kept

    def get(self, key: GroupKey) -> Rows | None:
        """The rows of a row group, if they are there."""
        with self._lock:
            rows = self._kept.get(key)
            if rows is not None:
                self._kept.move_to_end(key)
            return rows

    def keep(self, key: GroupKey, rows: Rows) -> None:
        """Keep these rows, and let others go for them. Rows that exceed it all are not kept."""
        size = rows.values.nbytes
        if size > self._most:
            return
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = rows
            self._bytes += size
            while self._bytes > self._most:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= gone.values.nbytes

    def clear(self) -> None:
        """Let all go."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0
