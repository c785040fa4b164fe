"""Answers with a file, or with one range of it, as RFC 9110 section 14 has them.

Of several ranges, or one that cannot be read, the whole file is the answer, as section 14.2 allows.
A range that the file does not reach is a 416. ``If-Range`` with another tag than the file's is the
whole file: what a client has is of other bytes.

Starlette's ``FileResponse`` opens a path by its name, follows links in it, and knows no object
store. This one reads what is open already. A file is read piece by piece, as the client takes it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from govray.platform.service.http.problems import Problem
from govray.storage.ranged_file import RangedFile

PIECE = 1 << 20
"""Bytes that one answer holds of its file."""

_RANGE = re.compile(r"\s*bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*", re.ASCII | re.IGNORECASE)


class FileAnswer(StreamingResponse):
    """``file``, which it closes. ``tag``: what names its bytes, without quotes.

    Raises:
        Problem: 416, the file does not reach the range that ``request`` asks for.
    """

    media_type = "application/octet-stream"

    def __init__(self, request: Request, file: RangedFile, tag: str) -> None:
        quoted = f'"{tag}"'
        asked = request.headers.get("range")
        if request.headers.get("if-range", quoted) != quoted:
            asked = None
        try:
            found = _asked(asked, file.size)
        except Problem:
            file.close()
            raise
        self._file = file
        self._start, self._stop = found or (0, file.size)
        headers = {
            "Accept-Ranges": "bytes",
            "Cache-Control": "private, no-cache",
            "Content-Disposition": "attachment",
            "Content-Length": str(self._stop - self._start),
            "ETag": quoted,
            "Vary": "Authorization, Cookie",
            "X-Content-Type-Options": "nosniff",
        }
        if found is not None:
            headers["Content-Range"] = f"bytes {self._start}-{self._stop - 1}/{file.size}"
        super().__init__(self._pieces(), 200 if found is None else 206, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        at = self._start
        while at < self._stop:
            piece = await run_in_threadpool(self._file.read, at, min(at + PIECE, self._stop))
            if not piece:
                raise OSError("the file ended while it was read")  # breaks the connection
            at += len(piece)
            yield piece


def _asked(header: str | None, size: int) -> tuple[int, int] | None:
    """The offsets of the range that ``header`` asks for; None for the whole file."""
    match = _RANGE.fullmatch(header or "")
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        start, stop = max(0, size - int(match[2])), size
    else:
        start, stop = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None  # no range at all
    if start >= stop:
        raise Problem(
            416,
            "Range not satisfiable",
            f"The file has {size} bytes",
            "Ask for bytes that it has",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return start, stop
