"""Where a run's commits lie: in its folder, or at a URL that the folder names.

The run's folder itself has the write-ahead ledger, events, locks, fence and pins. It is a path that
the driver and all ranks share, or lies at a URL with its commits. A run of a disk that commits
elsewhere has a file ``storage.json`` from its start, so that whoever has the folder finds the
commits. The place at the URL is new for each run: commits of another run of the same name don't mix
with this one's.

What several commits name lies once beside them, below ``governance/``: an object whose name is the
SHA-256 of its bytes. Objects are written before the manifest of the commit that names them, and
never changed. Readers compare their bytes with the name.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from govray.errors import Damaged, GovrayError, InfrastructureFailed, Malformed, Refused, UsageError
from govray.governance.formats import canonical_json
from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.storage.regular_file import read_regular
from govray.storage.storage_url import below, check_url
from govray.train.checkpoint.commit_folder import (
    PARTIAL,
    Folder,
    committed_at,
    open_commit,
    open_file,
)
from govray.train.checkpoint.commit_reader import FileEntry
from govray.train.checkpoint.object_store import OBJECT_NAME, ObjectFolder, ObjectStore
from govray.train.checkpoint.object_store import OBJECTS as OBJECTS
from govray.train.checkpoint.pins import folder_name as folder_name

FILE = "storage.json"
POINTER = "final_commit"
SUPERSEDED = ".superseded"
"""Suffix of a commit put aside by a run that resumed before it and reached it again."""
CORRUPT = ".corrupt"
"""Suffix of a commit whose bytes differ from its manifest."""

_STEP = re.compile(r"checkpoint_(\d{9})")
_LEFTOVERS = (PARTIAL, SUPERSEDED, CORRUPT)


class RunFolder:
    """Commits in the run's own folder. A folder with a commit's name may lack its manifest.
    What a run needs of the place of its commits; `ObjectStore` has the same."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def place(self, step: int, writer: tuple[int, int]) -> Folder:
        """Where a commit of this step goes; ``writer`` is the fence's driver and attempt.
        A name is taken once: a second writer's rename fails."""
        return self._path / folder_name(step)

    def commits(self) -> Sequence[tuple[int, Folder]]:
        """Every folder that has a commit's name, with its next step. Newest first."""
        return sorted(
            (
                (int(match[1]), entry)
                for entry in self._path.glob("checkpoint_*")
                if (match := _STEP.fullmatch(entry.name)) and _is_folder(entry)
            ),
            reverse=True,
        )

    def leftovers(self) -> Mapping[str, tuple[Folder, int]]:
        """Name → place and bytes of the folders that nothing loads: interrupted writes and
        deletions, and commits put aside."""
        found = [
            entry
            for entry in self._path.glob("checkpoint_*")
            if entry.name.endswith(_LEFTOVERS) and _is_folder(entry)
        ]
        # A commit has a manifest; without one it is an interrupted deletion.
        found += [
            folder
            for _, folder in self.commits()
            if isinstance(folder, Path) and committed_at(folder) is None
        ]
        return {entry.name: (entry, _size(entry)) for entry in sorted(found)}

    def objects(self) -> Mapping[str, int]:
        """SHA-256 in hex → bytes of the objects that commits share."""
        found = {}
        with suppress(FileNotFoundError), os.scandir(self._path / OBJECTS) as entries:
            for entry in entries:
                if OBJECT_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_size
        return found

    def write_object(self, name: str, data: bytes) -> None:
        """Put an object in its place; whole or not at all, and durable."""
        path = self._path / OBJECTS / name
        try:
            make_folder(path.parent)
            write_whole(path, data)
        except OSError as error:
            raise UsageError(
                f"what the checkpoint carries could not be written: {error.strerror}",
                where=str(path),
                do="Make room or choose another place, then resume",
            ) from error

    def read_object(self, name: str, size: int) -> bytes:
        """An object's bytes, at most one more than ``size``; unchecked. Raises as `open_file`."""
        with open_file(self._path / OBJECTS, name) as file:
            return file.read(size + 1)

    def remove_object(self, name: str) -> None:
        try:
            (self._path / OBJECTS / name).unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(
                f"it could not be deleted: {error.strerror}",
                where=str(self._path / OBJECTS / name),
            ) from error


Storage = RunFolder | ObjectStore


def object_name(entry: FileEntry) -> str:
    """The name of the object with these bytes: their SHA-256 in hex."""
    return entry.digest.partition(":")[2]


def storage_around(commit: Folder) -> Storage:
    """The place that a commit lies in, with what it shares with others."""
    if isinstance(commit, Path):
        return RunFolder(commit.parent)
    assert isinstance(commit, ObjectFolder)
    return commit.store


class SharedObjects:
    """What one commit names beside itself, checked as it is read."""

    def __init__(self, commit: Folder) -> None:
        self._name = commit.name
        self._storage = storage_around(commit)
        self._place = f"{commit.parent if isinstance(commit, Path) else self._storage}/{OBJECTS}"
        self._there = self._storage.objects()

    def read(self, entry: FileEntry, what: str) -> bytes:
        """The bytes of one object.
        Raises ``Damaged``: it is not beside the commit, or its bytes are others."""
        name = object_name(entry)
        where = f"{self._place}/{name}"
        if name not in self._there:
            raise Damaged(
                f"{what}, which {self._name} names, is missing",
                where=where,
                do="Restore it, or copy the checkpoint by `govray checkpoint copy`",
            )
        data = self._storage.read_object(name, entry.size)
        if canonical_json.sha256(data) != entry.digest:
            raise Damaged(
                f"{what}, which {self._name} names, has other bytes than its digest says",
                where=where,
                do="Restore it from a copy, or take another checkpoint",
            )
        return data


def recorded_url(run_folder: Place) -> str | None:
    """The place for commits of any run that this run began with; None for its own folder."""
    chosen = _chosen(run_folder)
    return chosen["storage"] if chosen else None


def storage_of(run_folder: Place) -> Storage:
    """The place where a run's commits lie."""
    chosen = _chosen(run_folder)
    if chosen:
        return ObjectStore(chosen["commits"])
    return RunFolder(run_folder) if isinstance(run_folder, Path) else ObjectStore(str(run_folder))


def committed_folders(run_folder: Place) -> Sequence[tuple[int, Folder]]:
    """Every folder that has a commit's name, whole or not, with its next step. Newest first."""
    return storage_of(run_folder).commits()


def latest(run_folder: Place, *, at_most: int | None = None) -> tuple[Folder, int] | None:
    """The newest commit under a run folder that has all its files, and its next step.

    With ``at_most``, only commits whose next step is that or before count.

    The one resolver of where a run resumes. It checks names, sizes and the manifest's form. The
    worker that loads the commit hashes every byte. If one is wrong it puts the commit aside, and
    the next resolution finds an older one.

    Raises:
        InfrastructureFailed: Remote storage refuses: nothing is known of any commit then.
    """
    for step, folder in committed_folders(run_folder):
        if at_most is not None and step > at_most:
            continue
        try:
            open_commit(folder)
        except InfrastructureFailed:
            raise
        except GovrayError:
            continue
        return folder, step
    return None


def require_reachable(url: str) -> None:
    """Check early that commits may be written at a URL."""
    try:
        ObjectStore(check_url(url)).require_bucket()
    except ValueError as error:
        raise UsageError(str(error), where="checkpoint storage") from None
    except InfrastructureFailed as error:
        raise UsageError(error.what, where=error.where, do=error.do) from error


def choose(run_folder: Place, url: str | None) -> None:
    """Record, when a run begins, where its commits lie. On resuming, require the same.
    ``url``: a place for commits of any run, or None for the run's folder."""
    path = run_folder / FILE
    chosen = _chosen(run_folder)
    begun = chosen is not None or (run_folder / "record" / "run.json").exists()
    if begun:
        recorded = chosen["storage"] if chosen else None
        if recorded != url:
            raise Refused(
                f"the run's commits lie {f'at {recorded}' if recorded else 'in its folder'}",
                where=str(run_folder),
                do="Resume it with the storage that it began with",
            )
    elif url is not None:
        place = below(url, f"{run_folder.name}.{secrets.token_hex(4)}")
        ObjectStore(place).begin(run_folder.name)
        write_whole(path, canonical_json.encode({"storage": url, "commits": place}))
    elif isinstance(run_folder, BucketPath):
        ObjectStore(str(run_folder)).begin(run_folder.name)


def shown_to_ray(run_folder: Place, folder: Folder) -> Place:
    """A path in the run's folder that stands for a commit: Ray accepts no other checkpoint.
    The commit itself, or a folder with a file that names it."""
    if isinstance(folder, Path):
        return folder
    pointer = run_folder / POINTER
    make_folder(pointer)
    write_whole(pointer / "commit.json", canonical_json.encode({"commit": str(folder)}))
    return pointer


def _chosen(run_folder: Place) -> dict[str, str] | None:
    path = run_folder / FILE
    try:
        value: Any = canonical_json.parse_canonical(read_regular(path), where=str(path))
    except FileNotFoundError:
        return None
    match value:
        case {"storage": str(), "commits": str(), **rest} if not rest:
            return dict(value)
    raise Malformed("expected the fields storage and commits", where=str(path))


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()


def _size(folder: Path) -> int:
    """Bytes of all files below. Files that vanish meanwhile don't count."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_size
    return total
