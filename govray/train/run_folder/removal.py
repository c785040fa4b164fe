"""A run's folder, or its commits alone, removed from a disk for good.

Code that trains writes below the storage, so nothing there is trusted. Each folder on the way is
opened from the one above, and none is entered through a link. A link is removed, and what it leads
to stays. A folder that goes is renamed first: from then on nobody finds the run, holds it or
resumes it. What a kill leaves goes when `remove` is called again.

What is at a URL is never removed here. ``storage.json`` says where commits lie, and who trains
writes it, so it could name another run's.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from govray.errors import InfrastructureFailed, Refused
from govray.governance.attestation.model_folder import MODEL
from govray.storage.place import Place
from govray.train.checkpoint.holds import read_holds
from govray.train.checkpoint.pins import COMPARED, MANIFEST, TAKEN_OVER, locked, read_pins
from govray.train.checkpoint.storage import FILE as ELSEWHERE
from govray.train.run_folder.run_lock import LOCK, driving

REPLAYS = "replays"
LOCK_SECONDS = 5.0
"""How long to wait for who deletes commits or pins one meanwhile."""

_OF_ITSELF = frozenset({COMPARED, TAKEN_OVER})
"""Reasons of pins that nobody needs once a run and its search have ended."""
_COMMIT = re.compile(r"checkpoint_.*")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def check_may_go(storage: Place, below: str) -> None:
    """Return if nothing in a run's folder, or in that of a replay in it, keeps it.

    Raises:
        Refused: It lies at a URL, is driven, held or pinned, or can't be looked into.
    """
    with _run(storage, below) as (_, folder):
        if folder is None:
            raise Refused(
                "the run's folder is not there, or a link leads to it",
                where=below,
                do="Mount its storage, or index it where it lies",
            )
        for each in _with_replays(folder):
            _check(each)


def remove(storage: Place, below: str, *, keep: bool) -> None:
    """Remove what a run left. What is gone already is no error.

    Args:
        below: The folder's place below ``storage``.
        keep: Its commits alone go: its model and all evidence stay.

    Raises:
        Refused: As `check_may_go`. Nothing was removed by this call.
    """
    with _run(storage, below) as (parent, folder):
        name = Path(below).name
        aside = f".{name}.deleted"
        _clear(aside, parent)  # of a call that was killed
        if folder is None:
            if _there(name, parent):
                raise Refused("a link or a file is in the folder's place", where=below)
            return
        with ExitStack() as held:
            for each in _with_replays(folder):
                held.enter_context(locked(each, seconds=LOCK_SECONDS))
                held.enter_context(_undriven(each))
                _check(each)
            opened = os.open(name, _FOLDER, dir_fd=parent)
            held.callback(os.close, opened)
            if keep:
                _remove_commits(opened)
                return
            os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
            os.fsync(parent)
        _clear(aside, parent)


def clear_aside(storage: Place, below: str) -> None:
    """Remove what a call of `remove` that was killed left of a folder, and nothing else."""
    with _run(storage, below) as (parent, _):
        _clear(f".{Path(below).name}.deleted", parent)


@contextmanager
def _run(storage: Place, below: str) -> Iterator[tuple[int, Path | None]]:
    """The folder above a run's, opened, and the run's; None: no plain folder is there."""
    parts = Path(below).parts
    if not isinstance(storage, Path):
        raise Refused(
            "the run lies at a URL, where govray removes nothing",
            where=below,
            do="Let the store's own rules remove it",
        )
    if not parts or any(part in ("..", "/", "") or part.startswith(".") for part in parts):
        raise Refused("no place of a run below the storage", where=below)
    with ExitStack() as opened:
        try:
            here = os.open(storage, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            raise Refused(
                "the storage of its runs is out of reach", where=below, do="Mount it, or ask later"
            ) from None
        opened.callback(os.close, here)
        for part in parts[:-1]:
            try:
                here = os.open(part, _FOLDER, dir_fd=here)
            except OSError:
                raise Refused(
                    "a folder above the run is not there, or is a link", where=below
                ) from None
            opened.callback(os.close, here)
        plain = _is_folder(parts[-1], here)
        yield here, storage / below if plain else None


def _with_replays(folder: Path) -> list[Path]:
    """A run's folder, and those of the replays in it."""
    replays = folder / REPLAYS
    if replays.is_symlink() or not replays.is_dir():
        return [folder]
    found = sorted(each for each in replays.iterdir() if each.is_dir() and not each.is_symlink())
    return [folder, *found]


def _check(folder: Path) -> None:
    try:
        if driving(folder):
            raise Refused(
                "the run is being driven",
                where=folder.name,
                do="Stop it first: govray runs stop RUN, or stop its submission",
            )
        cases = read_holds(folder)
        kept = {name: why for name, why in read_pins(folder).items() if why not in _OF_ITSELF}
    except OSError as error:
        raise Refused(
            f"its folder can't be looked into ({error.strerror})", where=folder.name
        ) from None
    if os.path.lexists(folder / ELSEWHERE):
        raise Refused(
            "the run commits to a URL, where govray removes nothing",
            where=folder.name,
            do="Let the store's own rules remove the commits",
        )
    if cases:
        raise Refused(
            f"the run is held for {', '.join(sorted(cases)[:3])}",
            where=folder.name,
            do="Release the hold first: govray runs release RUN --for CASE",
        )
    if kept:
        name, why = min(kept.items())
        raise Refused(
            f"{name} stays: {why}",
            where=folder.name,
            do="Unpin it first. What another run starts from stays as long as that run",
        )


@contextmanager
def _undriven(folder: Path) -> Iterator[None]:
    """Let nobody begin to drive the run meanwhile."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(folder / LOCK, flags)
    except FileNotFoundError:
        yield  # nobody ever drove it
        return
    except OSError as error:
        raise Refused(f"{LOCK} is no plain file ({error.strerror})", where=folder.name) from None
    try:
        # A shared lock: `_check` looks by one of its own, and a driver takes an exclusive one.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Refused(
            "the run is being driven", where=folder.name, do="Stop it first: govray runs stop RUN"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def _remove_commits(folder: int) -> None:
    """The manifest goes first, so that no part of a commit loads."""
    for name in sorted(os.listdir(folder)):
        if _COMMIT.fullmatch(name) and _is_folder(name, folder):
            with _opened(name, folder) as commit, suppress(FileNotFoundError):
                os.unlink(MANIFEST, dir_fd=commit)
                os.fsync(commit)
            _clear(name, folder)
    os.fsync(folder)


@contextmanager
def _opened(name: str, above: int) -> Iterator[int]:
    found = os.open(name, _FOLDER, dir_fd=above)
    try:
        yield found
    finally:
        os.close(found)


def _clear(name: str, above: int) -> None:
    """Remove what has a name, without following a link."""
    if not _there(name, above):
        return
    try:
        if _is_folder(name, above):
            shutil.rmtree(name, dir_fd=above)  # opens each folder without following links
        else:
            os.unlink(name, dir_fd=above)
        os.fsync(above)
    except OSError as error:
        raise InfrastructureFailed(
            f"it could not be removed whole ({error.strerror})",
            where=name,
            do="The next sweep goes on; give its account the right to write there",
        ) from error


def _there(name: str, above: int) -> bool:
    try:
        os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_folder(name: str, above: int) -> bool:
    try:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode)


def stands(storage: Place, below: str) -> bool:
    """Whether the run's folder is still in its place."""
    with _run(storage, below) as (_, folder):
        return folder is not None


def has_model(storage: Place, below: str) -> bool:
    """Whether a model, or what looks like one, lies in the run's folder. It stays, for what is
    attested is verified against it."""
    with _run(storage, below) as (_, folder):
        return folder is not None and os.path.lexists(folder / MODEL)
