"""Tensors of a commit as a folder of ``torch.distributed.checkpoint`` (DCP).

What is written is what ``torch.distributed.checkpoint.save`` writes: files of tensors, and last the
file ``.metadata``, without which nothing of the folder loads. So
``torch.distributed.checkpoint.load`` reads it into any number of ranks. A part of a sharded tensor
is one chunk. So no tensor is put together here, and a reader opens only the chunks with its rows.

Tensors pass by in the order in which they are stored. While torch writes a file, it keeps all
tensors of it. So each file ends after `FILE_BYTES`, and no more than that and two tensors is in
memory.

One way only: ``.metadata`` is a pickle, and nothing here reads a pickle from storage.

Source: torch.distributed.checkpoint.StorageWriter (the order of the calls).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from govray.errors import Damaged
from govray.governance.formats.tensor_header import Described, read_header
from govray.train.checkpoint.commit_reader import Committed
from govray.train.checkpoint.safetensors_stream import dtype_called
from govray.train.checkpoint.sharded_file import cut, part_name
from govray.train.checkpoint.whole_file import HashedFile

FILE_BYTES = 256 << 20
"""A file of the folder holds tensors of so many bytes, or one that is larger."""

Where = Callable[[str, str], tuple[str, ...] | None]
"""``(file, tensor) -> path`` in the state that a reader gets; None for what is left out."""


def require_intact(committed: Committed) -> None:
    """Read every file of a commit, and compare it with the manifest."""
    for name in committed.entries:
        with ExitStack() as opened:
            HashedFile(committed, opened, name).require_intact()


def write(
    committed: Committed,
    folder: Path,
    files: Iterable[str],
    where: Where,
    values: Mapping[str, Any],
) -> None:
    """Write tensors of a commit, and other values, as a DCP folder.

    Args:
        committed: `require_intact` accepted it. What is read is compared once more.
        folder: An empty folder.
        files: The safetensors files whose tensors are written; also ones in parts.
        where: Where each tensor goes.
        values: Nested dicts, of strings, numbers and lists at their ends.

    Raises:
        Damaged: Bytes are not those that were committed; ``folder`` must be deleted then.
        Malformed: There is no such file, or torch has no such numbers.
    """
    pieces = [piece for file in files for piece in _pieces(committed, file, where)]
    reading = _read(committed, pieces)
    planner = _Planner(reading)
    planner.set_up_planner(_nested(pieces, values), is_coordinator=True)
    # The caller syncs the folder. Without copies ahead, torch takes tensors in their given order.
    writer = FileSystemWriter(folder, sync_files=False, per_thread_copy_ahead=0)
    writer.set_up_storage_writer(True)
    first = writer.prepare_local_plan(planner.create_local_plan())
    others = [item for item in first.items if item.type == WriteItemType.BYTE_IO]
    plans = [
        SavePlan(items, planner_data=first.planner_data)
        for items in [others, *_by_file(pieces)]
        if items
    ]
    plans, metadata = planner.create_global_plan(plans)
    results = []
    for plan in writer.prepare_global_plan(plans):
        results.append(writer.write_data(planner.finish_plan(plan), planner).wait())
    if next(reading, None) is not None:  # runs to the last file's digest
        raise RuntimeError("torch wrote fewer tensors than it was given")
    writer.finish(metadata, results)


@dataclass(frozen=True)
class _Piece:
    """A tensor in one stored file: a whole one, or rows of one.

    Attributes:
        file: The stored file.
        path: Where it goes; None for what is left out.
        start: Its first row in the whole tensor.
        shape: The whole tensor's.
    """

    file: str
    stored: Described
    path: tuple[str, ...] | None
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def offsets(self) -> torch.Size:
        return torch.Size([self.start, *[0] * (len(self.shape) - 1)] if self.shape else [])

    @property
    def written(self) -> bool:
        """Whether it is a chunk; rows that a rank has none of are none."""
        return self.path is not None and (bool(self.stored.size) or not self.start)

    def item(self) -> WriteItem:
        assert self.path is not None
        sizes = torch.Size(self.stored.shape)
        return WriteItem(
            MetadataIndex(".".join(self.path), self.offsets),
            WriteItemType.SHARD,
            tensor_data=TensorWriteData(
                ChunkStorageMetadata(self.offsets, sizes),
                TensorProperties(dtype=self.dtype),
                torch.Size(self.shape),
            ),
        )


class _Planner(DefaultSavePlanner):
    """torch's, which takes tensors from storage when they are to be written."""

    def __init__(self, reading: Iterator[tuple[_Piece, Tensor]]) -> None:
        super().__init__()
        self._reading = reading

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        if write_item.type == WriteItemType.BYTE_IO:
            return super().resolve_data(write_item)
        piece, tensor = next(self._reading)
        index = piece.item().index
        if (index.fqn, index.offset) != (write_item.index.fqn, write_item.index.offset):
            raise RuntimeError(f"torch asks for {write_item.index.fqn} before {index.fqn}")
        return tensor


def _pieces(committed: Committed, file: str, where: Where) -> Iterator[_Piece]:
    """Every tensor of a file, in the order of its bytes; of one in parts, part after part."""
    index = None if file in committed.entries else committed.index
    rows = index.rows[file] if index and file in index.rows else {}
    for rank in range(index.world if index and rows else 1):
        stored = part_name(file, rank, index.world) if index and rows else file
        for tensor in _header(committed, stored):
            own, shape = range(0), tensor.shape
            if index and tensor.name in rows:
                own = cut(rows[tensor.name], rank, index.world)
                if not shape or shape[0] != len(own):
                    raise Damaged(f"has other rows of {tensor.name} than its own", where=stored)
                shape = (rows[tensor.name], *shape[1:])
            yield _Piece(
                file=stored,
                stored=tensor,
                path=where(file, tensor.name),
                start=own.start,
                shape=shape,
                dtype=dtype_called(tensor.dtype, tensor.name, stored),
            )


def _header(committed: Committed, stored: str) -> list[Described]:
    with ExitStack() as opened:
        file: Any = HashedFile(committed, opened, stored)
        return read_header(file, where=stored, size=file.size)


def _nested(pieces: Iterable[_Piece], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader gets, with an empty tensor for each: torch makes names and metadata of it."""
    state = _copied(values)
    for piece in pieces:
        if piece.path is None:
            continue
        inner = state
        for key in piece.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[piece.path[-1]] = torch.empty(piece.shape, dtype=piece.dtype, device="meta")
    return state


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _copied(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def _by_file(pieces: Iterable[_Piece]) -> list[list[WriteItem]]:
    """What goes into each file of the folder."""
    found: list[list[WriteItem]] = [[]]
    held = 0
    for piece in pieces:
        if not piece.written:
            continue
        if found[-1] and held + piece.stored.size > FILE_BYTES:
            found.append([])
            held = 0
        found[-1].append(piece.item())
        held += piece.stored.size
    return found


def _read(committed: Committed, pieces: Iterable[_Piece]) -> Iterator[tuple[_Piece, Tensor]]:
    """The tensors that are written, one after the other; each file is hashed on the way."""
    for name, group in groupby(pieces, key=lambda piece: piece.file):
        with ExitStack() as opened:
            file: Any = HashedFile(committed, opened, name)
            found = read_header(file, where=name, size=file.size)
            expected = list(group)
            if found != [piece.stored for piece in expected]:
                raise Damaged("changed while it was read", where=f"{committed.folder}/{name}")
            for piece in expected:
                if piece.written:
                    yield piece, _filled(file, piece)
                else:
                    for _ in file.read_exactly(piece.stored.size):
                        pass
            file.require_intact()


def _filled(file: HashedFile, piece: _Piece) -> Tensor:
    tensor = torch.empty(piece.stored.shape, dtype=piece.dtype)
    content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    data, start = memoryview(content), 0
    for part in file.read_exactly(piece.stored.size):
        data[start : start + len(part)] = part
        start += len(part)
    return tensor
