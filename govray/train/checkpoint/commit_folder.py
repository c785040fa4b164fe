"""Commit a folder of files as one thing, and load it by digest.

Three steps make a commit. `stage` makes a sibling folder named ``….partial``. `write` adds one file
to it and hashes it in the same pass. `publish` writes ``manifest.json`` (canonical JSON: name →
SHA-256 and size) and renames the folder into place. The rename is the commit point: before it
nothing under the final name exists. A ``….partial`` folder is refused by its name, even a complete
one that a kill left behind. Every write is fsynced before the manifest, the manifest before the
rename, the rename before returning. `commit` does all three in one process. Several ranks may
`write` their own names into one staged folder on shared storage. One of them then gathers the
entries and publishes, which compares them with the files.

`open_commit` checks the manifest's form, the names and the sizes, and each file's
SHA-256 when it is read, before it is handed out. `load` reads all files at once.
Neither opens a file twice.

A commit may also be on an object store, as an `ObjectFolder`. The functions here take either. The
rules above on staging, rename and fsync are for paths.

Equal content gives equal bytes: see ``stored_tensors.py`` for tensors; the manifest
(``commit_reader.py``) is canonical. Nothing is ever pickled.

To sign a commit, sign the digest that `publish` returns.

Source: fsync, rename, fsync of the parent as in POSIX rename(2), fsync(2).
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from govray.errors import Damaged, GovrayError, UsageError
from govray.governance.formats import canonical_json
from govray.storage.atomic_file import make_folder, sync_folder
from govray.train.checkpoint import commit_reader
from govray.train.checkpoint.commit_reader import MANIFEST as MANIFEST
from govray.train.checkpoint.commit_reader import PIECE, FileEntry, opened, pour
from govray.train.checkpoint.commit_reader import CommitFolder as CommitFolder
from govray.train.checkpoint.commit_reader import Content as Content
from govray.train.checkpoint.commit_reader import Folder as Folder

PARTIAL = ".partial"


def commit(
    folder: Folder, files: Mapping[str, Content], *, check: Callable[[], None] = lambda: None
) -> str:
    """Write all files and the manifest, or leave nothing.

    Args:
        folder: Must not exist. Its parent is created if need be.
        files: Relative POSIX path → content.
        check: Called when all else is written; what it raises stops the commit.

    Returns:
        The digest of the manifest, which fixes every byte of the folder.

    Raises:
        UsageError: If the folder exists, a name leaves it, or the disk refuses
            (full, read-only). Nothing of the attempt remains. That also holds
            for any other exception, ``KeyboardInterrupt`` included.
        InfrastructureFailed: Remote storage refuses. What remains of the attempt, if
            anything, does not load.
    """
    for name in files:
        commit_reader.require_inside(name, str(folder))
    staged = stage(folder)
    try:
        entries = {name: write(staged, name, files[name]) for name in files}
        return publish(staged, folder, entries, check=check)
    except BaseException:
        discard(staged)
        raise


def stage(folder: Folder) -> Folder:
    """Make the ``….partial`` folder that is to become ``folder``; on remote storage, nothing."""
    if not isinstance(folder, Path):
        return folder
    _require_free(folder)
    partial = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}{PARTIAL}")
    with _as_usage_error(folder):
        make_folder(folder.parent)
        partial.mkdir()
    return partial


def write(staged: Folder, name: str, content: Content) -> FileEntry:
    """Add one file to a staged folder, durably; its digest is of the bytes as they are written.

    Raises:
        UsageError: If the name leaves the folder, a tensor cannot be stored, the disk refuses, or
            this process does not see the staged folder. What was written so far remains there.
    """
    commit_reader.require_inside(name, str(staged))
    if not isinstance(staged, Path):
        return staged.write(name, content)
    path = staged / name
    with _as_usage_error(path):
        if not staged.is_dir():
            raise UsageError(
                "the folder in which the checkpoint is staged is not here",
                where=str(staged),
                do="Keep the run's folder on storage that all ranks share",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            entry = pour(content, file.write)
            file.flush()
            os.fsync(file.fileno())
    return entry


def publish(
    staged: Folder,
    folder: Folder,
    entries: Mapping[str, FileEntry],
    *,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Make a staged folder a commit: the manifest, then the rename.

    Args:
        staged: From `stage`, on the storage that all writers share.
        folder: Must not exist.
        entries: What `write` returned for each file, by name, of all writers.

    Returns:
        The digest of the manifest.

    Raises:
        UsageError: If the folder exists, or the disk refuses. Before the rename the
            staged folder remains; after it the commit is whole.
        Damaged: The staged folder does not hold these files in their sizes.
        InfrastructureFailed: Remote storage refuses.
    """
    if not isinstance(staged, Path) or not isinstance(folder, Path):
        assert not isinstance(staged, Path)
        return staged.publish(entries, check)
    _require_free(folder)
    manifest = commit_reader.encode_manifest(entries)
    with _as_usage_error(folder):
        commit_reader.require_whole(entries, _regular_files(staged), str(staged))
        check()
        for directory, _, _ in os.walk(staged, topdown=False):
            sync_folder(directory)
        with open(staged / MANIFEST, "xb") as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(staged)
        os.rename(staged, folder)
    try:
        sync_folder(folder.parent)
    except OSError as error:
        raise UsageError(
            f"the checkpoint is complete, but the disk did not confirm it: {error.strerror}",
            where=str(folder),
            do="Check the disk before relying on it",
        ) from error
    return canonical_json.sha256(manifest)


def discard(staged: Folder) -> None:
    """Delete what was staged, as far as the storage permits. What stays never loads."""
    if isinstance(staged, Path):
        shutil.rmtree(staged, ignore_errors=True)
    else:
        with suppress(GovrayError):
            staged.remove()


def remove(folder: Folder) -> None:
    """Delete a commit or its remains: the manifest first, so that no part of it loads.
    Raises ``UsageError``: the disk refuses. What remains does not load."""
    if not isinstance(folder, Path):
        return folder.remove()
    try:
        (folder / MANIFEST).unlink(missing_ok=True)
        sync_folder(folder)
        shutil.rmtree(folder)
    except OSError as error:
        raise UsageError(
            f"the checkpoint could not be deleted: {error.strerror}", where=str(folder)
        ) from error


def put_aside(folder: Folder, suffix: str) -> None:
    """Let no run resume from a commit; nothing of it is deleted.
    ``folder``: renamed; on remote storage, marked."""
    if not isinstance(folder, Path):
        return folder.put_aside(suffix)
    try:
        os.rename(folder, folder.with_name(f"{folder.name}.{secrets.token_hex(4)}{suffix}"))
    except OSError as error:
        raise UsageError(
            f"the checkpoint could not be put aside: {error.strerror}", where=str(folder)
        ) from error


def committed_at(folder: Folder) -> float | None:
    """When a commit's manifest was written, in seconds since the epoch by the storage's clock.

    None without a manifest: such a folder is left from a write or a deletion. 0 if the storage
    keeps no times.
    """
    if not isinstance(folder, Path):
        return folder.committed_at()
    try:
        return (folder / MANIFEST).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(folder, error) from error


def open_file(folder: Folder, name: str) -> BinaryIO:
    """Open one file for reading, unchecked."""
    if not isinstance(folder, Path):
        return folder.open_file(name)
    try:
        return open(os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise _unreadable(folder, error) from error


def copy_file(folder: Folder, name: str, target: Path) -> None:
    """Copy one file to ``target``, unchecked.

    Raises:
        OSError: ``target`` cannot be written, or a local file cannot be read.
        InfrastructureFailed: Remote storage refuses.
    """
    if isinstance(folder, Path):
        shutil.copyfile(folder / name, target)  # inside the kernel, if possible
    else:
        with folder.open_file(name) as source, open(target, "wb") as sink:
            shutil.copyfileobj(source, sink, PIECE)


def load(folder: Folder) -> CommitFolder:
    """Read a committed folder, every byte checked.

    Raises:
        UsageError: If the folder does not exist or cannot be read.
        Damaged: If it was never committed, or a file is missing, added, changed,
            cut, or not a regular file.
        InfrastructureFailed: Remote storage refuses.
    """
    committed = open_commit(folder)
    return CommitFolder(folder, committed.digest, committed.entries, dict(committed.files))


def open_commit(folder: Folder) -> CommitFolder:
    """Open a committed folder: names and sizes checked now, a file's bytes when they are read.

    Reading ``files[name]`` of the result raises as `load` does.

    Raises:
        Damaged: If it was never committed, its manifest is malformed, or a file is
            missing, added, of another size, or not a regular file.
    """
    if not isinstance(folder, Path):
        return folder.open_commit()
    if folder.resolve().name.endswith(PARTIAL):
        raise Damaged(
            "was never committed",
            where=str(folder),
            do="It is what an interrupted run left behind: resume from another checkpoint",
        )
    try:
        sizes = _regular_files(folder)
        manifest = _read(folder / MANIFEST, sizes[MANIFEST]) if MANIFEST in sizes else None
    except OSError as error:
        raise _unreadable(folder, error) from error

    def read(name: str, size: int) -> bytes:
        try:
            return _read(folder / name, size)
        except OSError as error:
            raise _unreadable(folder, error) from error

    return opened(folder, sizes, manifest, read)


def _require_free(folder: Path) -> None:
    if os.path.lexists(folder):
        raise UsageError(
            "already exists", where=str(folder), do="A checkpoint is never overwritten"
        )


@contextmanager
def _as_usage_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the checkpoint could not be written: {error.strerror}",
            where=str(path),
            do="Nothing of it was kept. Make room or choose another place, then resume",
        ) from error


def _unreadable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"the checkpoint could not be read: {error.strerror}", where=str(folder))


def _regular_files(folder: Path) -> dict[str, int]:
    """Relative name → size of all files below. Refuses what is neither file nor folder."""
    sizes: dict[str, int] = {}
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    pending.append(Path(entry.path))
                elif stat.S_ISREG(status.st_mode):
                    sizes[Path(entry.path).relative_to(folder).as_posix()] = status.st_size
                else:
                    raise Damaged("is not a regular file", where=entry.path)
    return sizes


def _read(path: Path, size: int) -> bytes:
    """The file's bytes; one more than ``size`` at most, so that growth shows in the digest."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        return file.read(size + 1)
