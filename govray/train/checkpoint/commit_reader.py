"""A commit as readers and writers see it, on any storage.

`pour` hashes a file's bytes while it passes them on. `opened` gives the files of a commit with
known names and sizes, and checks each file's SHA-256 before handing it out. Neither depends on
storage: ``commit_folder.py`` has the file system's, and a `RemoteFolder` any other. Nor do they
know tensors (``stored_tensors.py``): the attestor reads commits without torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from govray.errors import Damaged
from govray.governance.formats import canonical_json
from govray.train.checkpoint import commit_manifest, sharded_file
from govray.train.checkpoint.commit_manifest import MANIFEST, FileEntry
from govray.train.checkpoint.sharded_file import INDEX, ShardIndex, part_name

Content = bytes | Iterator[bytes | memoryview]
"""The content of a file, whole or in pieces; `stored_tensors.contents` gives those of tensors."""

PIECE = 1 << 20
"""Bytes of one piece: large enough that hashing and writing release the interpreter lock."""


class RemoteFolder(Protocol):
    """One commit on storage that is not a file system.

    The methods are the functions of ``commit_folder.py``, but files are staged in their final
    place. Each raises `InfrastructureFailed` if the storage can't be reached or refuses.
    """

    @property
    def name(self) -> str: ...

    def write(self, name: str, content: Content) -> FileEntry: ...

    def publish(self, entries: Mapping[str, FileEntry], check: Callable[[], None]) -> str: ...

    def open_commit(self) -> Committed: ...

    def open_file(self, name: str) -> BinaryIO: ...

    def committed_at(self) -> float | None: ...

    def remove(self) -> None: ...

    def put_aside(self, suffix: str) -> None: ...


Folder = Path | RemoteFolder
"""Where a commit lies, or will lie."""


@dataclass(frozen=True)
class Committed:
    """A committed folder.

    Attributes:
        digest: SHA-256 of the manifest's bytes, ``sha256:<hex>``.
        entries: Name → digest and size, from the manifest.
        files: Name → the bytes, checked.
    """

    folder: Folder
    digest: str
    entries: Mapping[str, FileEntry]
    files: Mapping[str, bytes]

    @property
    def size(self) -> int:
        """Bytes of all files, without the manifest."""
        return sum(entry.size for entry in self.entries.values())

    @property
    def names(self) -> frozenset[str]:
        """The files' names. A file in parts has one name (``sharded_file.py``)."""
        return sharded_file.file_names(self.entries)

    @property
    def index(self) -> ShardIndex | None:
        """The index of files in parts; None in a commit that one rank wrote."""
        if INDEX not in self.entries:
            return None
        index = ShardIndex.parse(self.files[INDEX], str(self.folder))
        first = {part_name(name, 0, index.world) for name in index.rows}
        if not first <= self.entries.keys():
            raise Damaged("names other parts than there are", where=f"{self.folder}/{INDEX}")
        return index


def pour(content: Content, sink: Callable[[bytes | memoryview], object]) -> FileEntry:
    """Pass a file's bytes to ``sink`` piece by piece, and return their digest and size."""
    pieces: Iterable[bytes | memoryview] = [content] if isinstance(content, bytes) else content
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        sink(piece)
        digest.update(piece)
        size += len(piece)
    return FileEntry(f"sha256:{digest.hexdigest()}", size)


def opened(
    folder: Folder,
    sizes: Mapping[str, int],
    manifest: bytes | None,
    read: Callable[[str, int], bytes],
) -> Committed:
    """A commit whose manifest was read, and whose files' names and sizes are known.

    Args:
        sizes: Name → bytes of every file that is there.
        manifest: The manifest's bytes, or None if there is none.
        read: ``(name, size) -> bytes``: the file's, at most one byte more than ``size``, so that
            growth changes the digest.
    """
    if manifest is None:
        raise Damaged(
            f"has no {MANIFEST}, so it was never committed",
            where=str(folder),
            do="Resume from another checkpoint",
        )
    entries = commit_manifest.parse(manifest, str(folder))
    others = {name: size for name, size in sizes.items() if name != MANIFEST}
    commit_manifest.require_whole(entries, others, str(folder))
    sharded_file.require_complete(entries, str(folder))
    return Committed(
        folder, canonical_json.sha256(manifest), entries, _Files(str(folder), entries, read)
    )


class _Files(Mapping[str, bytes]):
    """Files that are read and checked on access."""

    def __init__(
        self, where: str, entries: Mapping[str, FileEntry], read: Callable[[str, int], bytes]
    ) -> None:
        self._where = where
        self._entries = entries
        self._read = read

    def __getitem__(self, name: str) -> bytes:
        entry = self._entries[name]
        data = self._read(name, entry.size)
        if canonical_json.sha256(data) != entry.digest:
            raise Damaged(
                f"differs from its digest in {MANIFEST}",
                where=f"{self._where}/{name}",
                do="Resume from another checkpoint",
            )
        return data

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
