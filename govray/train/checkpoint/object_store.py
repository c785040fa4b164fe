"""Commits on an object store: S3, Google Cloud Storage, Azure.

An object store has no rename, so a commit is written in place and its manifest last: that
one PUT is the commit point. Objects without a manifest beside them never load.

Each write has a folder of its own, ``checkpoint_000000100.<driver>.<attempt>.<random>``, so two
writers never share an object. Commits of an earlier driver or attempt
(`govray.train.run_folder.run_lock.Fence`) count only if they are before all commits of a later one.
Others are leftovers of a process that had been shut out. A commit is put aside by another object in
its folder, named for the reason. A deletion begins with the manifest.

Two properties are assumed: an object appears whole or not at all, and every list or read after a
PUT or DELETE sees it. S3, Google Cloud Storage and Azure document both. If an object appeared in
part, a cut manifest would not parse, and a cut file would differ in size.

An upload that failed or was killed leaves no object. Its parts are in no listing; a lifecycle rule
of the bucket deletes them.
"""

from __future__ import annotations

import io
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from govray.errors import InfrastructureFailed, UsageError
from govray.governance.formats import canonical_json
from govray.storage.bucket_path import BucketPath
from govray.train.checkpoint.commit_reader import (
    MANIFEST,
    CommitFolder,
    Content,
    FileEntry,
    encode_manifest,
    opened,
    pour,
    require_whole,
)

ASIDE = "aside"
OBJECTS = "governance"
"""Folder of the objects that commits share, beside them."""
LABEL = "run.json"
"""Written when a run begins: it tests write access, and tells people whose folder it is."""

_FOLDER = re.compile(r"(checkpoint_(\d{9}))\.(\d+)\.(\d+)\.[0-9a-f]{8}")
OBJECT_NAME = re.compile(r"[0-9a-f]{64}")
_DO = (
    "Check the URL, the network, and the store's credentials in the environment "
    "of the process (for S3: AWS_*)"
)


class ObjectStore:
    """The place of one run's commits. Pickled without credentials, which never travel.
    ``url``: as `govray.storage.storage_url.check_url` accepts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.root = BucketPath.parse(url)

    def require_bucket(self) -> None:
        """Check that the URL's bucket exists."""
        with _reaching(self.url):
            self.root.is_dir()

    def begin(self, run: str) -> None:
        """Write the label of a new run."""
        try:
            self.write(self.root / LABEL, canonical_json.encode({"run": run}), self.url)
        except InfrastructureFailed as error:
            raise UsageError(error.what, where=self.url, do=_DO) from error

    def place(self, step: int, writer: tuple[int, int]) -> ObjectFolder:
        """A new folder for a commit of this step; see `RunFolder` in ``storage.py``."""
        driver, attempt = writer
        name = f"checkpoint_{step:09d}.{driver}.{attempt}.{secrets.token_hex(4)}"
        return ObjectFolder(self, name)

    def commits(self) -> Sequence[tuple[int, ObjectFolder]]:
        """The commits that count, newest first, with their next steps. One for each step."""
        return [(step, ObjectFolder(self, name)) for step, name in _counting(self._folders())]

    def leftovers(self) -> Mapping[str, tuple[ObjectFolder, int]]:
        """Folder → place and bytes of writes cut short or overtaken, and commits put aside."""
        folders = self._folders()
        count = {name for _, name in _counting(folders)}
        return {
            name: (ObjectFolder(self, name), sum(files.values()))
            for name, files in sorted(folders.items())
            if name not in count
        }

    def objects(self) -> Mapping[str, int]:
        """SHA-256 in hex → bytes of the objects that commits share."""
        found = self.files_below(self.root / OBJECTS, self.url)
        return {name: size for name, size in found.items() if OBJECT_NAME.fullmatch(name)}

    def write_object(self, name: str, data: bytes) -> None:
        ObjectFolder(self, OBJECTS).write(name, data)

    def read_object(self, name: str, size: int) -> bytes:
        return ObjectFolder(self, OBJECTS).read(name, size)

    def remove_object(self, name: str) -> None:
        with _reaching(self.url):
            (self.root / OBJECTS / name).unlink(missing_ok=True)

    def __str__(self) -> str:
        return self.url.partition("?")[0]

    def files_below(self, path: BucketPath, where: str) -> dict[str, int]:
        """Relative name → bytes of every object below a path."""
        with _reaching(where):
            return {name: stat.st_size for name, stat in path.walk_files().items()}

    def write(self, path: BucketPath, content: Content, where: str) -> FileEntry:
        """Write one object. Its digest is of the bytes as they are sent.
        Raises ``InfrastructureFailed``: the store refuses."""
        with _reaching(where), path.writer() as sink:
            return pour(content, sink)

    def _folders(self) -> dict[str, dict[str, int]]:
        """Folder with a commit's name → its files and their bytes. Other objects here are not
        ours."""
        folders: dict[str, dict[str, int]] = {}
        for name, size in self.files_below(self.root, self.url).items():
            folder, _, file = name.partition("/")
            if file and _FOLDER.fullmatch(folder):
                folders.setdefault(folder, {})[file] = size
        return folders


class ObjectFolder:
    """One commit's place on an object store. Its methods are the functions of
    ``commit_folder.py``, but files are staged in their final place."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self.store = store
        self.folder = folder
        self.name = folder.partition(".")[0]
        self.path = store.root / folder
        self._where = f"{store.url.partition('?')[0]}/{folder}"

    def __str__(self) -> str:
        return self._where

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectFolder) and self._where == other._where

    def __hash__(self) -> int:
        return hash(self._where)

    def write(self, name: str, content: Content) -> FileEntry:
        """As `govray.train.checkpoint.commit_folder.write`."""
        return self.store.write(self.path / name, content, f"{self}/{name}")

    def publish(self, entries: Mapping[str, FileEntry], check: Callable[[], None]) -> str:
        """As `govray.train.checkpoint.commit_folder.publish`.
        One request lies between the end of ``check`` and the manifest."""
        require_whole(entries, self._sizes(), str(self))
        manifest = encode_manifest(entries)
        check()
        self.store.write(self.path / MANIFEST, manifest, f"{self}/{MANIFEST}")
        return canonical_json.sha256(manifest)

    def open_commit(self) -> CommitFolder:
        """As `govray.train.checkpoint.commit_folder.open_commit`."""
        sizes = self._sizes()
        manifest = self.read(MANIFEST, sizes[MANIFEST]) if MANIFEST in sizes else None
        return opened(self, sizes, manifest, self.read)

    def open_file(self, name: str) -> BinaryIO:
        """As `govray.train.checkpoint.commit_folder.open_file`."""
        where = f"{self}/{name}"
        with _reaching(where):
            return io.BufferedReader(_Named((self.path / name).open(), where))

    def committed_at(self) -> float | None:
        """As `govray.train.checkpoint.commit_folder.committed_at`."""
        with _reaching(str(self)):
            try:
                return (self.path / MANIFEST).stat().modified.timestamp()
            except FileNotFoundError:
                return None

    def remove(self) -> None:
        """As `govray.train.checkpoint.commit_folder.remove`."""
        with _reaching(str(self)):
            (self.path / MANIFEST).unlink(missing_ok=True)
            for name in self.path.walk_files():
                (self.path / name).unlink(missing_ok=True)

    def put_aside(self, suffix: str) -> None:
        """As `govray.train.checkpoint.commit_folder.put_aside`."""
        self.store.write(self.path / f"{ASIDE}{suffix}", b"", str(self))

    def _sizes(self) -> dict[str, int]:
        return self.store.files_below(self.path, str(self))

    def read(self, name: str, size: int) -> bytes:
        """The object's bytes; one more than ``size`` at most, so that growth shows."""
        with self.open_file(name) as file:
            return file.read(size + 1)


class _Named(io.RawIOBase):
    """One object, whose reads raise errors that name it."""

    def __init__(self, stream: BinaryIO, where: str) -> None:
        self._stream = stream
        self._where = where

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _reaching(self._where):
            return self._stream.readinto(buffer)  # type: ignore[attr-defined]


@contextmanager
def _reaching(where: str) -> Iterator[None]:
    """Turn a store's errors into one that names the storage."""
    try:
        yield
    except OSError as error:
        text = str(error.strerror or error).removeprefix("the storage failed: ")
        raise InfrastructureFailed(f"the storage failed: {text}", where=where, do=_DO) from error


def _counting(folders: Mapping[str, Mapping[str, int]]) -> list[tuple[int, str]]:
    """Step and folder of the commits that count, newest first."""
    whole = [(*_numbers(name), name) for name, files in folders.items() if _is_commit(files)]
    found: dict[int, str] = {}
    for driver, attempt, step, name in sorted(whole, reverse=True):
        later = (each[2] for each in whole if each[:2] > (driver, attempt))
        if all(step < reached for reached in later):
            found.setdefault(step, name)
    return list(found.items())


def _numbers(folder: str) -> tuple[int, int, int]:
    """Driver, attempt and step."""
    match = _FOLDER.fullmatch(folder)
    assert match
    return int(match[3]), int(match[4]), int(match[2])


def _is_commit(files: Mapping[str, int]) -> bool:
    return MANIFEST in files and not any(name.startswith(f"{ASIDE}.") for name in files)
