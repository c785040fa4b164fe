"""A lock on an object store: an object that its holder renews, taken by conditional writes.

A disk's locks end with their process. Here a holder that died leaves the object, which counts as
held until it has not been renewed for `LEASE_S`. If that process was on this machine and is gone,
the lock is free at once. Ages are the store's time against this machine's, so clocks must agree to
some seconds. Where they don't, two may hold the lock, and the run's fence tells them apart.

Of two that take a lock at once, the store refuses one: the first write is "if absent", and each
later one "if unchanged".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any

from govray.errors import Refused
from govray.governance.formats import canonical_json
from govray.storage.bucket import Replaced
from govray.storage.bucket_path import BucketPath, Tag

LEASE_S = 60.0
"""How long a lock counts as held since it was renewed."""
RENEW_S = 15.0


class Taken(Exception):
    """Another process holds the lock."""


@contextmanager
def hold(path: BucketPath, owner: dict[str, Any], *, host: str) -> Iterator[None]:
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


def held(path: BucketPath, *, host: str) -> bool:
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
