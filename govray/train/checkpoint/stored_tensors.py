"""Tensors in a commit: the files' bytes of them, and them again from the files.

Apart from `govray.train.checkpoint.commit_reader`, which reads names, digests and bytes, since this
needs torch and that is also read without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import Tensor

from govray.errors import Damaged, Malformed, UsageError
from govray.governance.formats.tensor_header import Described, header_bytes, read_header
from govray.train.checkpoint.commit_reader import PIECE, CommitFolder, Content
from govray.train.checkpoint.sharded_file import ShardIndex, cut, part_name

Stored = bytes | Mapping[str, Tensor]
"""A file: its bytes, or the tensors by name that it is to hold."""


def contents(files: Mapping[str, Stored]) -> dict[str, Content]:
    """Name → what is written; tensors become a safetensors file, read piece by piece, once."""
    return {
        name: content if isinstance(content, bytes) else pieces(content, where=name)
        for name, content in files.items()
    }


def tensors_of(committed: CommitFolder, name: str) -> dict[str, Tensor]:
    """The whole tensors of a safetensors file, by name; of one in parts, joined.

    Shapes and dtypes are the file's, the device is the CPU.

    Raises:
        Damaged: If bytes are not those of the manifest.
    """
    index = None if name in committed.entries else committed.index
    if index is None or name not in index.rows:
        return _stored(committed, name)
    return held_rows(committed, index, name, lambda _, rows: range(rows))


def _stored(committed: CommitFolder, name: str) -> dict[str, Tensor]:
    if name not in committed.entries:
        raise Malformed("the checkpoint has no such file", where=name)
    try:
        return safetensors.torch.load(committed.files[name])
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise Malformed(f"not a safetensors file: {error}", where=name) from error


def held_rows(
    committed: CommitFolder,
    index: ShardIndex,
    name: str,
    wanted: Callable[[str, int], range],
) -> dict[str, Tensor]:
    """What a reader needs of a file in parts. Parts without any of it stay unread.

    Args:
        wanted: ``(tensor, rows of the whole) -> rows``, for each sharded tensor.

    Returns:
        By name: (wanted rows, …) of sharded tensors, and all others whole, in their stored
        dtype, on the CPU.
    """
    rows = index.rows[name]
    spans = {tensor: wanted(tensor, count) for tensor, count in rows.items()}
    found: dict[str, Tensor] = {}
    for rank in range(index.world):
        shares = {
            tensor: _shared(cut(rows[tensor], rank, index.world), spans[tensor]) for tensor in rows
        }
        if rank and not any(shares.values()):
            continue
        file = part_name(name, rank, index.world)
        part = _stored(committed, file)
        if rank == 0:
            found = {tensor: value for tensor, value in part.items() if tensor not in rows}
        for tensor, share in shares.items():
            own = cut(rows[tensor], rank, index.world)
            value = part.get(tensor)
            if value is None or not value.ndim or len(value) != len(own):
                raise Damaged(
                    f"does not hold rows {own.start} to {own.stop} of {tensor}", where=file
                )
            if rank == 0:
                shape = (len(spans[tensor]), *value.shape[1:])
                found[tensor] = torch.empty(shape, dtype=value.dtype)
            into = found[tensor]
            if value.shape[1:] != into.shape[1:] or value.dtype != into.dtype:
                raise Damaged(f"has {tensor} in another form than the first part", where=file)
            start = spans[tensor].start
            into[share.start - start : share.stop - start] = value[
                share.start - own.start : share.stop - own.start
            ]
    return found


def _shared(one: range, other: range) -> range:
    """The common rows; an empty range at the start of ``other`` if they share no row."""
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return range(start, stop) if start < stop else range(other.start, other.start)


# The library's own order of dtypes, in which it writes from the last to the first.
_DTYPES = {
    dtype: (place, name)
    for place, (name, dtype) in enumerate(
        [
            ("BOOL", torch.bool),
            ("U8", torch.uint8),
            ("I8", torch.int8),
            ("F8_E5M2", torch.float8_e5m2),
            ("F8_E4M3", torch.float8_e4m3fn),
            ("I16", torch.int16),
            ("U16", torch.uint16),
            ("F16", torch.float16),
            ("BF16", torch.bfloat16),
            ("I32", torch.int32),
            ("U32", torch.uint32),
            ("F32", torch.float32),
            ("C64", torch.complex64),
            ("F64", torch.float64),
            ("I64", torch.int64),
            ("U64", torch.uint64),
        ]
    )
}


NAMED_DTYPES = {name: dtype for dtype, (_, name) in _DTYPES.items()}


# The bytes of a safetensors file in pieces, written and read without a copy of the whole: those of
# ``safetensors.torch.save``. Tensors are ordered by dtype, the widest first, and then by name.
# Equal tensors give equal bytes.
#
# Source: https://github.com/huggingface/safetensors (format, and its ``serialize``'s order).


def dtype_called(name: str, tensor: str, where: str) -> torch.dtype:
    """The dtype that the format calls so."""
    if name not in NAMED_DTYPES:
        raise Malformed(f"{tensor} holds {name}, which torch has no dtype for", where=where)
    return NAMED_DTYPES[name]


def pieces(tensors: Mapping[str, Tensor], *, where: str) -> Iterator[bytes | memoryview]:
    """The file's bytes in order. ``tensors``: by name; any shape and device, of a dtype that the
    format has. A strided or shared one is written whole, once a name."""
    order = sorted(tensors, key=lambda name: (-_dtype(tensors[name], name, where)[0], name))
    entries = []
    for name in order:
        tensor = tensors[name]
        kind = _dtype(tensor, name, where)[1]
        entries.append(Described(name, kind, tuple(tensor.shape), tensor.nbytes))
    yield header_bytes(entries, where=where)
    for name in order:
        yield from _bytes(tensors[name])


def _bytes(tensor: Tensor) -> Iterator[memoryview]:
    if not tensor.numel():
        return
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    content: Any = plain.view(torch.uint8).numpy()
    data = memoryview(content)
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]


def _dtype(tensor: Tensor, name: str, where: str) -> tuple[int, str]:
    found = _DTYPES.get(tensor.dtype)
    if name == "__metadata__":
        raise UsageError("a tensor is called __metadata__, as the format's own field", where=where)
    if found is None or tensor.layout is not torch.strided:
        raise UsageError(
            f"{name}: a {tensor.dtype} tensor of layout {tensor.layout} cannot be stored",
            where=where,
            do="Keep parameters, buffers and optimizer state dense and of a common dtype",
        )
    return found


# Some rows of each tensor of a safetensors file, and the digest of the whole file, in one reading.
#
# A rank that shares a model reads its rows of existing weights. Every byte passes by once, from
# start to end, and is hashed; what is not wanted is let go at once. So the rows are of the bytes
# whose digest is returned.
#
# Source: https://github.com/huggingface/safetensors (format).


def read_rows(
    file: BinaryIO, wanted: Callable[[Described], range], *, where: str
) -> tuple[dict[str, Tensor], str]:
    """Read a file that is open at its beginning.

    Args:
        file: Read to its end.
        wanted: Which rows (first dimension) of a tensor are kept; all or none of one without
            dimensions.

    Returns:
        By name: (wanted rows, …) in the stored dtype, on the CPU. And ``sha256:…`` of the file.
    """
    hashed: Any = _Hashed(file)
    found: dict[str, Tensor] = {}
    for tensor in read_header(hashed, where=where):
        own = wanted(tensor)
        rows = tensor.shape[0] if tensor.shape else 1
        each = tensor.size // max(1, rows)
        hashed.skip(own.start * each)
        shape = (len(own), *tensor.shape[1:]) if tensor.shape else ()
        value = torch.empty(shape, dtype=dtype_called(tensor.dtype, tensor.name, where))
        if len(own):
            hashed.fill(value)
        hashed.skip(tensor.size - own.start * each - len(own) * each)
        if len(own) or not rows:
            found[tensor.name] = value
    hashed.finish(where)
    return found, "sha256:" + hashed.sha256.hexdigest()


class _Hashed:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._short = False
        self.sha256 = hashlib.sha256()

    def read(self, count: int) -> bytes:
        data = self._file.read(count)
        self.sha256.update(data)
        return data

    def skip(self, count: int) -> None:
        while count > 0:
            data = self.read(min(count, PIECE))
            if not data:
                self._short = True
                return
            count -= len(data)

    def fill(self, tensor: Tensor) -> None:
        content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        data = memoryview(content)
        for start in range(0, len(data), PIECE):
            piece = self.read(len(data[start : start + PIECE]))
            if len(piece) != len(data[start : start + PIECE]):
                self._short = True
                return
            data[start : start + PIECE] = piece

    def finish(self, where: str) -> None:
        if self._short or self.read(1):
            how = "before the last tensor's end" if self._short else "after the last tensor"
            raise Malformed(f"the file ends {how}", where=where)
