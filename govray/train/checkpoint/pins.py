"""Which commits of a run stay, whatever its rules say: ``pins.json`` in the run's folder.

The file maps the name of a commit to why it stays. A warm start pins the commit that it starts
from. People pin commits too, and their reasons begin with `BY`. So nobody takes away by hand what
another run needs.

A process that deletes commits holds the lock of the file meanwhile: no pin comes between the look
and the deletion. Code that trains writes to the folder, so nothing in it is trusted. Neither the
lock nor the file is followed if it is a link, and neither may be a pipe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from govray.errors import InfrastructureFailed, Malformed, Refused, UsageError
from govray.governance.formats import canonical_json
from govray.storage.atomic_file import write_whole
from govray.storage.place import Place

PINS = "pins.json"
MANIFEST = "manifest.json"
"""The file that makes a folder a commit; it is removed first."""
BY = "pinned by "
COMPARED = "compared with the replayed run"
"""Why a replay's own commits stay. Nobody else needs them."""
TAKEN_OVER = "another trial may take it over"
"""Why commits of a search's trial stay while the search goes on."""
LONGEST_REASON = 200
"""Characters."""

_MOST_BYTES = 1 << 20
_LOOK_SECONDS = 0.05


def folder_name(step: int) -> str:
    """Name of the commit whose next step is ``step``."""
    return f"checkpoint_{step:09d}"


def read_pins(run_folder: Place) -> dict[str, str]:
    """Name → reason; empty where there is no ``pins.json``."""
    path = run_folder / PINS
    try:
        data = read_file(path) if isinstance(path, Path) else path.read_bytes()
    except FileNotFoundError:
        return {}
    value: Any = canonical_json.parse_canonical(data, where=str(path))
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise Malformed("expected names with reasons", where=str(path))
    return value


def write_pins(run_folder: Place, pins: Mapping[str, str]) -> None:
    """Replace the pins of a run, whose lock the caller holds."""
    write_whole(run_folder / PINS, canonical_json.encode(dict(pins)))


@contextlib.contextmanager
def locked(run_folder: Place, *, seconds: float | None = None) -> Iterator[None]:
    """Hold the lock of a run's pins.

    Nobody pins commits on an object store: weights to start from are on a disk.

    Args:
        seconds: How long to wait for who holds it; None: for ever.

    Raises:
        InfrastructureFailed: Somebody held it all the time.
    """
    if not isinstance(run_folder, Path):
        yield
        return
    path = run_folder / f".{PINS}.lock"
    descriptor = _opened(path, os.O_RDWR | os.O_CREAT)
    try:
        _lock(descriptor, path, seconds)
        yield
    finally:
        os.close(descriptor)


def pin(run_folder: Path, name: str, *, who: str, reason: str, seconds: float | None = None) -> str:
    """Keep a commit, as a person asks for, and return why it stays. A second time changes nothing.

    Args:
        reason: A line of at most `LONGEST_REASON` characters.

    Raises:
        Refused: The folder has no such commit, or it is pinned for another reason.
    """
    if len(reason) > LONGEST_REASON or not reason.isprintable():
        raise UsageError(f"a reason is a line of at most {LONGEST_REASON} characters")
    wanted = f"{BY}{who}: {reason}" if reason else f"{BY}{who}"
    with locked(run_folder, seconds=seconds):
        if not (run_folder / name / MANIFEST).is_file():
            raise Refused(
                "the run's folder has no such commit",
                where=name,
                do="It was deleted, or the run commits to a URL, where nothing is pinned",
            )
        pins = read_pins(run_folder)
        if name in pins and pins[name] != wanted:
            raise Refused(f"it is pinned already: {pins[name]}", where=name)
        if name not in pins:
            write_pins(run_folder, pins | {name: wanted})
    return wanted


def unpin(run_folder: Path, name: str, *, seconds: float | None = None) -> None:
    """Let the rules decide about a commit again. Without a pin nothing changes.
    Raises ``Refused``: no person pinned it: another run starts from it."""
    with locked(run_folder, seconds=seconds):
        pins = read_pins(run_folder)
        reason = pins.pop(name, None)
        if reason is None:
            return
        if not reason.startswith(BY):
            raise Refused(f"it stays for another run: {reason}", where=name)
        write_pins(run_folder, pins)


def read_file(path: Path) -> bytes:
    """The bytes of a small file of a run's folder, in which nothing is trusted."""
    descriptor = _opened(path, os.O_RDONLY)
    with open(descriptor, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise Malformed(f"larger than {_MOST_BYTES} bytes", where=str(path))
    return data


def _opened(path: Path, flags: int) -> int:
    try:
        # A pipe would keep who opens it.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Malformed("no plain file", where=str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Malformed("no plain file", where=str(path))
    return descriptor


def _lock(descriptor: int, path: Path, seconds: float | None) -> None:
    if seconds is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise InfrastructureFailed(
                    "somebody holds the lock of the pins", where=str(path), do="Try again"
                ) from None
            time.sleep(_LOOK_SECONDS)
        else:
            return
