"""Whole files of a commit, also of files in parts: their bytes, digest and size.

A stored file gives its stored bytes and the manifest's digest, which is not computed again. A file
in parts (``sharded_file.py``) is joined as a stream. All parts are read once, side by side, and
hashed, with one piece in memory at a time. A changed part is found only at its end. The caller then
gets `Damaged` instead of a digest, and must discard the output.

Only `content` holds a whole file in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from govray.errors import Damaged, Malformed
from govray.governance.formats.tensor_header import Described, header_bytes, read_header
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.commit_reader import PIECE, CommitFolder, FileEntry, pour
from govray.train.checkpoint.sharded_file import cut, part_name


def entry(committed: CommitFolder, name: str) -> FileEntry:
    """Digest and size of a whole file. One in parts is read for it.
    Raises ``Damaged``: a part's bytes are not those that were committed."""
    if name in committed.entries:
        return committed.entries[name]
    return pour(_pieces(committed, name), len)


def copy(committed: CommitFolder, name: str, target: Path) -> FileEntry:
    """Write a whole file to ``target``, and return its digest and size.

    A stored file is copied unchecked, and its digest is the manifest's. One in parts is
    hashed as it is written.

    Raises:
        Damaged, Malformed, InfrastructureFailed: As `entry`. The caller must delete ``target``
            then.
    """
    if name in committed.entries:
        commit_folder.copy_file(committed.folder, name, target)
        return committed.entries[name]
    with open(target, "wb") as file:
        return pour(_pieces(committed, name), file.write)


def content(committed: CommitFolder, name: str) -> bytes | None:
    """The bytes of a whole file, checked; None if there is no such file."""
    if name in committed.entries:
        return committed.files[name]
    return b"".join(_pieces(committed, name)) if name in committed.names else None


def header(committed: CommitFolder, name: str) -> BinaryIO:
    """The file whose header names all tensors of ``name``, open at its start, unchecked."""
    if name not in committed.entries and (index := committed.index) and name in index.rows:
        name = part_name(name, 0, index.world)
    return commit_folder.open_file(committed.folder, name)


def _pieces(committed: CommitFolder, name: str) -> Iterator[bytes]:
    index = committed.index
    if index is None or name not in index.rows:
        raise Malformed("the checkpoint has no such file", where=name)
    with ExitStack() as opened:
        parts = [
            HashedFile(committed, opened, part_name(name, rank, index.world))
            for rank in range(index.world)
        ]
        try:
            yield from _joined(parts, index.rows[name], name)
        except Malformed as error:  # a header is not checked yet
            raise Damaged(error.what, where=f"{committed.folder}/{error.where}") from error
        for part in parts:
            part.require_intact()


def _joined(parts: list[HashedFile], rows: Mapping[str, int], name: str) -> Iterator[bytes]:
    """The whole file's bytes. Its order of tensors is that of the first part, which has all."""
    headers = [read_header(part, where=part.name, size=part.size) for part in parts]  # type: ignore[arg-type]
    held = [{each.name: each for each in described} for described in headers]
    for rank, described in enumerate(headers):
        order = [each.name for each in headers[0] if not rank or each.name in rows]
        if [each.name for each in described] != order or not rows.keys() <= held[0].keys():
            raise Malformed("does not hold the tensors of the others", where=parts[rank].name)
    yield header_bytes([_whole(tensor, held, rows) for tensor in held[0]], where=name)
    for tensor in held[0]:
        for part, own in zip(parts, held, strict=True):
            if tensor in own:
                yield from part.read_exactly(own[tensor].size)


def _whole(tensor: str, held: list[dict[str, Described]], rows: Mapping[str, int]) -> Described:
    first = held[0][tensor]
    if tensor not in rows:
        return first
    for rank, described in enumerate(held):
        own = described[tensor]
        count = len(cut(rows[tensor], rank, len(held)))
        if (own.dtype, own.shape) != (first.dtype, (count, *first.shape[1:])):
            raise Malformed(f"part {rank} has other rows of {tensor} than its own", where=tensor)
    shape = (rows[tensor], *first.shape[1:])
    return Described(tensor, first.dtype, shape, sum(each[tensor].size for each in held))


class HashedFile:
    """One stored file, read from its beginning to its end and hashed on the way.
    Nothing of it counts before `require_intact` returned."""

    def __init__(self, committed: CommitFolder, opened: ExitStack, name: str) -> None:
        self.name = name
        if name not in committed.entries:
            raise Malformed("the checkpoint has no such file", where=name)
        self._entry = committed.entries[name]
        self._where = f"{committed.folder}/{name}"
        self._file = opened.enter_context(commit_folder.open_file(committed.folder, name))
        self._digest = hashlib.sha256()

    @property
    def size(self) -> int:
        """Bytes of the file, by the manifest."""
        return self._entry.size

    def read(self, count: int) -> bytes:
        """The next bytes; fewer than ``count`` at the end."""
        data = self._file.read(count)
        self._digest.update(data)
        return data

    def read_exactly(self, count: int) -> Iterator[bytes]:
        """The next ``count`` bytes, in pieces."""
        while count:
            piece = self.read(min(count, PIECE))
            if not piece:
                raise Damaged("is cut off", where=self._where)
            yield piece
            count -= len(piece)

    def require_intact(self) -> None:
        """Read to the end, and accept the file if all its bytes are those of the manifest."""
        while self.read(PIECE):  # nothing, if already at the end
            pass
        if f"sha256:{self._digest.hexdigest()}" != self._entry.digest:
            raise Damaged(
                "differs from its digest in manifest.json",
                where=self._where,
                do="Resume from another checkpoint",
            )
