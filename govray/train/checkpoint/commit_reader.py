"""A commit as readers and writers see it, on any storage.

`pour` hashes a file's bytes while it passes them on. `opened` gives the files of a commit with
known names and sizes, and checks each file's SHA-256 before handing it out. Neither depends on
storage: ``commit_folder.py`` has the file system's, and ``object_store.py`` the object stores'. Nor
do they know tensors (``stored_tensors.py``): the attestor reads commits without torch.

The manifest maps the name of every file to its SHA-256 and size, in canonical JSON (RFC 8785).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from govray.errors import Damaged, Malformed, UsageError
from govray.governance.formats import canonical_json
from govray.train.checkpoint import sharded_file
from govray.train.checkpoint.pins import MANIFEST as MANIFEST
from govray.train.checkpoint.sharded_file import INDEX, ShardIndex, part_name

if TYPE_CHECKING:
    from govray.train.checkpoint.object_store import ObjectFolder

SCHEMA = "govray.dev/checkpoint/v1"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """One file's entry: its digest, ``sha256:<hex>``, and its size in bytes."""

    digest: str
    size: int


def encode_manifest(entries: Mapping[str, FileEntry]) -> bytes:
    """The manifest's bytes: equal for equal entries, in any order."""
    return canonical_json.encode(
        {
            "schema": SCHEMA,
            "files": {
                name: {"digest": entry.digest, "size": entry.size}
                for name, entry in entries.items()
            },
        }
    )


def parse_manifest(manifest: bytes, where: str) -> dict[str, FileEntry]:
    """Name → entry of a manifest, strictly parsed."""
    where = f"{where}/{MANIFEST}"
    try:
        value: Any = canonical_json.parse_canonical(manifest, where=where)
    except Malformed as error:
        raise Damaged(error.what, where=error.where, do=error.do) from error
    if not isinstance(value, dict) or value.keys() != {"schema", "files"}:
        raise Damaged("expected the fields schema and files", where=where)
    if value["schema"] != SCHEMA or not isinstance(value["files"], dict):
        raise Damaged(f"not a {SCHEMA} manifest", where=where)
    entries: dict[str, FileEntry] = {}
    for name, entry in value["files"].items():
        match entry:
            case {"digest": str(digest), "size": int(size), **rest} if (
                not rest
                and type(size) is int
                and size >= 0
                and _is_inside(name)
                and _DIGEST.fullmatch(digest)
            ):
                entries[name] = FileEntry(digest, size)
            case _:
                raise Damaged(f"the entry of {name!r} is malformed", where=where)
    return entries


def require_whole(entries: Mapping[str, FileEntry], sizes: Mapping[str, int], where: str) -> None:
    """Compare what a manifest names with the files beside it.
    ``sizes``: name → bytes of every file that is there, the manifest left out."""
    if odd := entries.keys() ^ sizes.keys():
        raise Damaged(
            "missing" if min(odd) in entries else f"not in {MANIFEST}",
            where=f"{where}/{min(odd)}",
            do="Resume from another checkpoint",
        )
    for name, entry in entries.items():
        if sizes[name] != entry.size:
            raise Damaged(
                f"has {sizes[name]} bytes, {MANIFEST} says {entry.size}", where=f"{where}/{name}"
            )


def require_inside(name: str, where: str) -> None:
    """Accept a plain relative path that is not the manifest's own."""
    if not _is_inside(name):
        raise UsageError(f"{name!r} is no path inside the checkpoint", where=where)


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") for part in parts)
    return plain and name != MANIFEST and not set(name) & {"\\", "\0"}


Content = bytes | Iterator[bytes | memoryview]
"""The content of a file, whole or in pieces; `stored_tensors.contents` gives those of tensors."""

PIECE = 1 << 20
"""Bytes of one piece: large enough that hashing and writing release the interpreter lock."""


Folder: TypeAlias = "Path | ObjectFolder"
"""Where a commit lies, or will lie."""


@dataclass(frozen=True)
class CommitFolder:
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
) -> CommitFolder:
    """A commit whose manifest was read, and whose files' names and sizes are known.

    Args:
        sizes: Name → bytes of every file that is there.
        manifest: The manifest's bytes, if it is there.
        read: ``(name, size) -> bytes``: the file's, at most one byte more than ``size``, so that
            growth changes the digest.
    """
    if manifest is None:
        raise Damaged(
            f"has no {MANIFEST}, so it was never committed",
            where=str(folder),
            do="Resume from another checkpoint",
        )
    entries = parse_manifest(manifest, str(folder))
    others = {name: size for name, size in sizes.items() if name != MANIFEST}
    require_whole(entries, others, str(folder))
    sharded_file.require_complete(entries, str(folder))
    return CommitFolder(
        folder, canonical_json.sha256(manifest), entries, _CheckedFiles(str(folder), entries, read)
    )


class _CheckedFiles(Mapping[str, bytes]):
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
