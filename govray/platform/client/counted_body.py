"""A request's body that says how much of it was read, for who watches a long one."""

from __future__ import annotations

from collections.abc import Callable

Told = Callable[[int, int], None]
"""Called with the bytes that were read so far, and with all that there are."""


class CountedBody:
    """Bytes that `http.client` reads piece by piece."""

    def __init__(self, data: bytes, told: Told) -> None:
        self._data = memoryview(data)
        self._told = told
        self._at = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, count: int = -1) -> bytes:
        """The next bytes; none at the end."""
        stop = len(self._data) if count < 0 else min(len(self._data), self._at + count)
        piece = bytes(self._data[self._at : stop])
        if piece:
            self._at = stop
            self._told(self._at, len(self._data))
        return piece
