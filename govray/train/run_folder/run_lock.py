"""Who may write into a run: one driver at a time, and one attempt of its workers.

``driver.lock`` is locked (flock) while a driver lives. The kernel releases it when the process
dies, whatever the cause. ``fence`` holds two numbers: how many drivers have taken the run, and how
many attempts have begun. A driver raises the first when it takes the run. Each start of a group of
workers raises the second. Rank 0 compares both before it writes. So workers of a dead driver can't
write into a run that another driver has taken.

Another driver can take the run between rank 0's comparison and its write. Rank 0 then writes a leaf
or a commit of the same plan; the write-ahead file refuses one that differs.

Locks need storage that has them: a local disk, NFS version 4, most parallel file systems. On an
object store the lock is a lease: an object that its holder renews, taken by conditional writes. The
fence is changed by such writes too. Where locks do nothing, two drivers of one run are told apart
by the fence alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from govray.errors import InfrastructureFailed, Malformed, Refused, Stopped, UsageError
from govray.governance.formats import canonical_json
from govray.storage.bucket import Replaced
from govray.storage.bucket_path import BucketPath, Tag
from govray.storage.place import Place
from govray.storage.regular_file import read_regular
from govray.train.run_folder import events
from govray.train.run_folder.clock import now

LOCK = "driver.lock"
FENCE = "fence"

_PATIENCE_S = 2.0
"""How long `hold` tries: `driving` or a dying process may have the lock for a moment."""


class Driven(UsageError):
    """Another driver has the run. Once it has ended, another try may go well."""

    exit_code = InfrastructureFailed.exit_code


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
def hold(run_folder: Place, *, alone: bool = False) -> Iterator[int]:
    """Be the run's driver within the context. Yields this driver's number, from 1.
    ``alone``: on a cluster of its own. Raises ``Driven``: another driver has the run."""
    own = Holder(os.getpid(), socket.gethostname(), now())
    with _locking(run_folder, own):
        number = take_over(run_folder)
        events.append(
            run_folder,
            events.DriverStarted(
                at=own.since, driver=number, host=own.host, pid=own.pid, alone=alone
            ),
        )
        yield number


def _locking(run_folder: Place, own: Holder) -> AbstractContextManager[None]:
    if isinstance(run_folder, BucketPath):
        return _leased(run_folder, own)
    return _flocked(run_folder, own)


@contextmanager
def _flocked(run_folder: Path, own: Holder) -> Iterator[None]:
    descriptor = os.open(run_folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not _locked(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise _taken(run_folder)
            time.sleep(0.05)
        _rewrite(descriptor, canonical_json.encode(vars(own)))
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _leased(run_folder: BucketPath, own: Holder) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lease(run_folder / LOCK, vars(own), host=own.host))
        except Taken:
            raise _taken(run_folder) from None
        yield


def driving(run_folder: Place) -> bool:
    """Whether a driver has the run now."""
    if isinstance(run_folder, BucketPath):
        return lease_held(run_folder / LOCK, host=socket.gethostname())
    try:
        descriptor = os.open(run_folder / LOCK, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        return not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def holder(run_folder: Place) -> Holder | None:
    """Who has the run, or had it last; None if nobody ever did or it can't be told."""
    try:
        value: Any = canonical_json.parse_canonical(read_regular(run_folder / LOCK))
        return Holder(value["pid"], value["host"], value["since"])
    except (OSError, Refused, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class Fence:
    """What one attempt compares before it writes."""

    folder: Place
    driver: int
    attempt: int

    def check(self) -> None:
        """Return if nobody has taken the run since."""
        found = _numbers(self.folder)
        if found != (self.driver, self.attempt):
            raise _taken_over((self.driver, self.attempt), found, self.folder)


def _taken_over(own: tuple[int, int], found: tuple[int, int], folder: Place) -> Refused:
    return Refused(
        f"the run was taken over: this is driver {own[0]}, attempt {own[1]}; "
        f"now {found[0]} and {found[1]} write",
        where=str(folder),
        do="Do nothing: another process has the run now",
    )


def take_over(run_folder: Place) -> int:
    """Shut out every earlier driver and its workers. Returns the new driver's number."""
    return _change_fence(run_folder, lambda driver, attempt: (driver + 1, attempt))[0]


def killed(run_folder: Place, by: str) -> Stopped:
    """Log that a run ends which has not committed in time. Returns the error of its driver, who
    takes it over: what still runs may no longer write."""
    events.append(run_folder, events.Killed(at=now(), by=by))
    return Stopped(
        f"ended before it had committed, by {by}",
        where=f"run {run_folder.name}",
        do="It goes on from its last commit when it is resumed; raise preemption_timeout_s if a "
        "step and a commit take longer",
    )


def begin_attempt(run_folder: Place, driver: int) -> Fence:
    """Shut out earlier attempts of this driver. Called once at each start of a group of workers."""

    def begun(holder: int, attempt: int) -> tuple[int, int]:
        if holder != driver:
            raise _taken_over((driver, attempt), (holder, attempt), run_folder)
        return holder, attempt + 1

    return Fence(run_folder, *_change_fence(run_folder, begun))


def last_attempt(run_folder: Place) -> int:
    """The number of the newest attempt; 0 before the first."""
    return _numbers(run_folder)[1]


def _change_fence(
    run_folder: Place, change: Callable[[int, int], tuple[int, int]]
) -> tuple[int, int]:
    """Change the two numbers, one process at a time. Returns the new ones."""
    if isinstance(run_folder, BucketPath):
        return _swap_fence(run_folder, change)
    descriptor = os.open(run_folder / FENCE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        numbers = change(*_parse(os.pread(descriptor, 256, 0), run_folder))
        _rewrite(descriptor, canonical_json.encode(list(numbers)))
        return numbers
    finally:
        os.close(descriptor)


def _swap_fence(
    run_folder: BucketPath, change: Callable[[int, int], tuple[int, int]]
) -> tuple[int, int]:
    path = run_folder / FENCE
    while True:
        try:
            data, tag = path.read_stamped()
        except FileNotFoundError:
            data, tag = b"", None
        numbers = change(*_parse(data, run_folder))
        new = canonical_json.encode(list(numbers))
        try:
            _ = path.create(new) if tag is None else path.swap(new, tag)
        except (FileExistsError, Replaced):
            continue  # another process was faster
        return numbers


def _numbers(run_folder: Place) -> tuple[int, int]:
    if isinstance(run_folder, BucketPath):
        return _parse((run_folder / FENCE).read_bytes(), run_folder)
    descriptor = os.open(run_folder / FENCE, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return _parse(os.pread(descriptor, 256, 0), run_folder)
    finally:
        os.close(descriptor)


def _parse(data: bytes, run_folder: Place) -> tuple[int, int]:
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


def _taken(run_folder: Place) -> Driven:
    found = holder(run_folder)
    who = f"process {found.pid} on {found.host} since {found.since}" if found else "another process"
    return Driven(
        f"the run is being driven by {who}",
        where=str(run_folder),
        do="Wait for it, or end it with `govray runs stop`",
    )


LEASE_S = 60.0
"""How long a lock counts as held since it was renewed."""
RENEW_S = 15.0


# A disk's locks end with their process. Here a holder that died leaves the object, which counts as
# held until it has not been renewed for `LEASE_S`. If that process was on this machine and is gone,
# the lock is free at once. Ages are the store's time against this machine's, so clocks must agree
# to some seconds. Where they don't, two may hold the lock, and the fence tells them apart.


class Taken(Exception):
    """Another process holds the lock."""


@contextmanager
def hold_lease(path: BucketPath, owner: dict[str, Any], *, host: str) -> Iterator[None]:
    """Hold the lock within the context.
    ``owner``: who holds it, for people; has ``pid`` and ``host``."""
    tag = _take(path, owner, host)
    end = threading.Event()
    newest = [tag]

    def renew() -> None:
        for times in count(1):
            if end.wait(RENEW_S):
                return
            try:
                renewed = canonical_json.encode(owner | {"renewed": times})
                newest[0] = path.swap(renewed, newest[0])
            except Replaced:
                return  # another has it: the fence stops this one's workers
            except OSError:
                continue  # the store is away; perhaps it comes back in time

    thread = threading.Thread(target=renew, name="govray-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        with suppress(OSError):
            path.swap(canonical_json.encode(owner | {"released": True}), newest[0])


def lease_held(path: BucketPath, *, host: str) -> bool:
    """Whether a process holds the lock now, as far as can be told."""
    try:
        data, modified = path.read_bytes(), path.stat().modified
    except FileNotFoundError:
        return False
    return _lives(data, modified, host)


def _take(path: BucketPath, owner: dict[str, Any], host: str) -> Tag:
    data = canonical_json.encode(owner)
    try:
        return path.create(data)
    except FileExistsError:
        pass
    try:
        modified = path.stat().modified
        there, tag = path.read_stamped()
        if _lives(there, modified, host):
            raise Taken
        return path.swap(data, tag)
    except (FileNotFoundError, Replaced):
        raise Taken from None  # another was faster


def _lives(data: bytes, modified: datetime, host: str) -> bool:
    try:
        owner: Any = canonical_json.parse_canonical(data)
        released, pid, there = owner.get("released"), int(owner["pid"]), owner["host"]
    except (Refused, AttributeError, KeyError, TypeError, ValueError):
        return False  # nobody that govray knows
    if released:
        return False
    if there == host and not _runs(pid):
        return False
    return (datetime.now(UTC) - modified).total_seconds() < LEASE_S


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's process
    return True
