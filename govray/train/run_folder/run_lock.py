"""Who may write into a run: one driver at a time, and one attempt of its workers.

``driver.lock`` is locked (flock) while a driver lives. The kernel releases it when the process
dies, whatever the cause. ``fence`` holds two numbers: how many drivers have taken the run, and how
many attempts have begun. A driver raises the first when it takes the run. Each start of a group of
workers raises the second. Rank 0 compares both before it writes. So workers of a dead driver can't
write into a run that another driver has taken.

Another driver can take the run between rank 0's comparison and its write. Rank 0 then writes a leaf
or a commit of the same plan; the write-ahead file refuses one that differs.

Locks need storage that has them: a local disk, NFS version 4, most parallel file systems. Where
locks do nothing, two drivers of one run are told apart by the fence alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from govray.errors import Malformed, Refused, UsageError
from govray.governance.formats import canonical_json
from govray.train.run_folder import events
from govray.train.run_folder.clock import now

LOCK = "driver.lock"
FENCE = "fence"

_PATIENCE_S = 2.0
"""How long `hold` tries: `driving` or a dying process may have the lock for a moment."""


@dataclass(frozen=True)
class Holder:
    """Who drives a run, in its own words."""

    pid: int
    host: str
    since: str

    @property
    def here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.host == socket.gethostname()


@contextmanager
def hold(run_folder: Path) -> Iterator[int]:
    """Be the run's driver within the context. Yields this driver's number, from 1.

    Raises:
        UsageError: Another driver has the run.
    """
    descriptor = os.open(run_folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not _locked(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise _taken(run_folder)
            time.sleep(0.05)
        since = now()
        own = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        _rewrite(descriptor, canonical_json.encode(own))
        number = take_over(run_folder)
        events.append(
            run_folder,
            events.DriverStarted(
                at=since, driver=number, host=socket.gethostname(), pid=os.getpid()
            ),
        )
        yield number
    finally:
        os.close(descriptor)


def driving(run_folder: Path) -> bool:
    """Whether a driver has the run now."""
    try:
        descriptor = os.open(run_folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def holder(run_folder: Path) -> Holder | None:
    """Who has the run, or had it last; None if nobody ever did or it can't be told."""
    try:
        value: Any = canonical_json.parse_canonical((run_folder / LOCK).read_bytes())
        return Holder(value["pid"], value["host"], value["since"])
    except (OSError, Refused, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class Fence:
    """What one attempt compares before it writes.

    Attributes:
        folder: The run's.
        driver, attempt: The numbers under which the attempt began.
    """

    folder: Path
    driver: int
    attempt: int

    def check(self) -> None:
        """Return if nobody has taken the run since.

        Raises:
            Refused: Another driver or attempt has it.
        """
        found = _numbers(self.folder)
        if found != (self.driver, self.attempt):
            raise Refused(
                f"the run was taken over: this is driver {self.driver}, attempt {self.attempt}; "
                f"now {found[0]} and {found[1]} write",
                where=str(self.folder),
                do="Do nothing: another process has the run now",
            )


def take_over(run_folder: Path) -> int:
    """Shut out every earlier driver and its workers. Returns the new driver's number."""
    with _fence(run_folder) as numbers:
        numbers[0] += 1
        return numbers[0]


def begin_attempt(run_folder: Path, driver: int) -> Fence:
    """Shut out earlier attempts of this driver. Called once at each start of a group of workers.

    Raises:
        Refused: Another driver has taken the run.
    """
    with _fence(run_folder) as numbers:
        if numbers[0] != driver:
            Fence(run_folder, driver, numbers[1]).check()
        numbers[1] += 1
        return Fence(run_folder, driver, numbers[1])


def last_attempt(run_folder: Path) -> int:
    """The number of the newest attempt; 0 before the first."""
    return _numbers(run_folder)[1]


@contextmanager
def _fence(run_folder: Path) -> Iterator[list[int]]:
    """The two numbers, to be changed in place by one process at a time."""
    descriptor = os.open(run_folder / FENCE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        numbers = list(_parse(os.pread(descriptor, 256, 0), run_folder))
        yield numbers
        _rewrite(descriptor, canonical_json.encode(numbers))
    finally:
        os.close(descriptor)


def _numbers(run_folder: Path) -> tuple[int, int]:
    descriptor = os.open(run_folder / FENCE, os.O_RDONLY)
    try:
        return _parse(os.pread(descriptor, 256, 0), run_folder)
    finally:
        os.close(descriptor)


def _parse(data: bytes, run_folder: Path) -> tuple[int, int]:
    where = str(run_folder / FENCE)
    value = canonical_json.parse_canonical(data, where=where) if data else [0, 0]
    match value:
        case [int(driver), int(attempt)]:
            return driver, attempt
    raise Malformed("the fence does not hold two numbers", where=where, do="Start a new run")


def _rewrite(descriptor: int, data: bytes) -> None:
    """Overwrite a small file in place: a new file would not have the lock."""
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))
    os.fsync(descriptor)


def _locked(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def _taken(run_folder: Path) -> UsageError:
    found = holder(run_folder)
    who = f"process {found.pid} on {found.host} since {found.since}" if found else "another process"
    return UsageError(
        f"the run is being driven by {who}",
        where=str(run_folder),
        do="Wait for it, or end it with `govray runs stop`",
    )
