"""What a process prints, shipped to the run's folder, where it outlives machine and session.

``<run>/logs/rank-<rank>-<attempt>.log`` is a worker's output, ``driver-<driver>.log`` a driver's.
A thread reads what the process has written to its own standard output and error. They must be
files, as they are under Ray and in jobs. On a disk it appends. On an object store it writes the
whole object anew, once a minute and at the end.

Invariants:

* Shipping never fails a run, and never waits for it: what cannot be written is left out.
* A line is one that a terminal only shows, at most `LONGEST_LINE` long, without private keys and
  without what looks like a token.
* A log has at most `MOST_BYTES`. What follows is not shipped, and a last line says so.
* A process that is killed loses the last second of its log, and on an object store the last minute.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from govray.printable import HIDDEN, printable
from govray.storage.place import Place

FOLDER = "logs"
LONGEST_LINE = 4096
MOST_BYTES = 16 << 20
POLL_S = 1.0
UPLOAD_S = 60.0
READ_BYTES = 1 << 20
"""Of one look at one file."""
CUT = "(this log is cut here: it has its most bytes)"

_TOKEN = re.compile(
    r"gov[rs]_[\w-]+|whsec_[\w+/=]+|eyJ[\w-]+\.[\w-]+\.[\w-]*|[Bb]earer\s+\S+|\bAKIA[0-9A-Z]{16}\b"
)
_MOST_OF_KEY = 200
"""Lines of a private key that are left out behind its first, unless it ends before."""

OnLine = Callable[[str], None]


def worker_log(rank: int, attempt: int) -> str:
    return f"rank-{rank}-{attempt}.log"


def driver_log(driver: int) -> str:
    return f"driver-{driver}.log"


def outputs(*, from_now: bool = False) -> list[tuple[str, int]]:
    """This process's standard output and error, as far as they are files, and where to begin.
    ``from_now``: leave out what the files have already."""
    found: dict[tuple[int, int], tuple[str, int]] = {}
    for number in (1, 2):
        path = f"/proc/self/fd/{number}"
        with suppress(OSError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                begin = status.st_size if from_now else 0
                found.setdefault((status.st_dev, status.st_ino), (path, begin))
    return list(found.values())


class ShippedLog:
    """Ships the files ``sources`` to the log ``name`` of a run, from `start` to `close`.

    Args:
        name: From `worker_log` or `driver_log`.
        sources: Paths and offsets, as `outputs` gives them.
        on_line: Called with every line, as it is shipped; the thread's own errors aside.
    """

    def __init__(
        self,
        run_folder: Place,
        name: str,
        sources: Sequence[tuple[str, int]],
        *,
        on_line: OnLine | None = None,
        poll: float = POLL_S,
    ) -> None:
        self._target = run_folder / FOLDER / name
        self._sources = [_Source(path, begin) for path, begin in sources]
        self._on_line, self._poll = on_line, poll
        self._file: IO[bytes] | None = None
        self._size = self._sent = 0
        self._in_key = 0
        self._uploaded = time.monotonic()
        self._broken = False
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="govray-log", daemon=True)

    def __enter__(self) -> ShippedLog:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begin, if there is anything to ship."""
        if self._sources:
            self._thread.start()

    def close(self) -> None:
        """Ship what is left, and end. Twice is once."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        _flush_printed()
        self._look(last=True)
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def write(self, text: str) -> None:
        """Ship lines that the process did not print, such as the error that ends it.
        They come behind what it has printed."""
        _flush_printed()
        self._look(last=False)
        with self._lock:
            self._put(text.splitlines())

    def _run(self) -> None:
        while not self._stop.wait(self._poll):
            self._look(last=False)

    def _look(self, *, last: bool) -> None:
        with self._lock:
            for source in self._sources:
                while lines := source.lines(last=last):
                    self._put(lines)
            self._flush(last=last)

    def _put(self, lines: Sequence[str]) -> None:
        shown = [clean for line in lines if (clean := self._clean(line)) is not None]
        for line in shown:
            if self._on_line is not None:
                with suppress(Exception):  # a policy's trouble is not the log's
                    self._on_line(line)
        if self._broken or self._size >= MOST_BYTES:
            return
        data = "".join(f"{line}\n" for line in shown).encode("utf-8", "backslashreplace")
        room = MOST_BYTES - self._size
        if len(data) > room:
            data = data[: data.rfind(b"\n", 0, room) + 1] + f"{CUT}\n".encode()
            self._size = MOST_BYTES
        try:
            if self._file is None:
                self._file = _opened(self._target)
            self._file.write(data)
            self._size += len(data)
        except Exception:  # whatever the storage says: a run is worth more than its log
            self._broken = True

    def _clean(self, line: str) -> str | None:
        """``line`` as it is shipped; None: it is part of a private key."""
        if self._in_key:
            self._in_key = 0 if "-----END" in line else self._in_key - 1
            return None
        # Of a progress bar that draws over itself, what it drew last.
        line = line.rstrip("\r").rpartition("\r")[2]
        if len(line) > LONGEST_LINE:
            line = f"{line[:LONGEST_LINE]}…"
        clean = printable(_TOKEN.sub("[cut]", line.expandtabs(4)))
        if HIDDEN in clean and "-----END" not in line:
            self._in_key = _MOST_OF_KEY
        return clean

    def _flush(self, *, last: bool) -> None:
        if self._broken or self._file is None:
            return
        try:
            self._file.flush()
            late = time.monotonic() - self._uploaded >= UPLOAD_S
            if not isinstance(self._target, Path) and self._sent != self._size and (late or last):
                self._uploaded, self._sent = time.monotonic(), self._size
                self._file.seek(0)
                self._target.write_bytes(self._file.read())
        except Exception:  # as in `_put`
            self._broken = last


class _Source:
    """A file that grows, read line by line from where the last look ended."""

    def __init__(self, path: str, begin: int) -> None:
        self._path, self._at = path, begin
        self._file: IO[bytes] | None = None
        self._rest = b""

    def lines(self, *, last: bool) -> list[str]:
        """The whole lines that are new; with ``last`` one that is not whole too."""
        data = b""
        with suppress(OSError):
            if self._file is None:
                self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 (it is kept)
            if os.fstat(self._file.fileno()).st_size < self._at:
                self._at = 0  # it was begun anew
            data = os.pread(self._file.fileno(), READ_BYTES, self._at)
        self._at += len(data)
        if not data and not self._rest_is_due(last):
            self._follow()
            return []
        *whole, self._rest = (self._rest + data).split(b"\n")
        if self._rest_is_due(last and len(data) < READ_BYTES):
            whole.append(self._rest)
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in whole]

    def _rest_is_due(self, last: bool) -> bool:
        return len(self._rest) > LONGEST_LINE or (last and bool(self._rest))

    def _follow(self) -> None:
        """Turn to the file that has taken this one's place, if Ray has rotated it."""
        with suppress(OSError):
            if self._file is None:
                return
            here, there = os.fstat(self._file.fileno()), os.stat(self._path)
            if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
                self._file.close()
                self._file, self._at = None, 0


def _flush_printed() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _opened(target: Place) -> IO[bytes]:
    """What is appended to: the log itself, or on a store a file that is uploaded."""
    if not isinstance(target, Path):
        made: Any = tempfile.TemporaryFile()  # noqa: SIM115 (the log closes it)
        return made
    target.parent.mkdir(exist_ok=True)
    return target.open("ab")
