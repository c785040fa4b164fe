"""Tensors in a commit: the files' bytes of them, and them again from the files.

Apart from `govray.train.checkpoint.commit_reader`, which reads names, digests and bytes, since this
needs torch and that is also read where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import safetensors.torch
import torch
from torch import Tensor

from govray.errors import Damaged, Malformed
from govray.train.checkpoint import safetensors_stream
from govray.train.checkpoint.commit_reader import Committed, Content
from govray.train.checkpoint.sharded_file import ShardIndex, cut, part_name

Stored = bytes | Mapping[str, Tensor]
"""A file: its bytes, or the tensors by name that it is to hold."""


def contents(files: Mapping[str, Stored]) -> dict[str, Content]:
    """Name → what is written; tensors become a safetensors file, read piece by piece, once."""
    return {
        name: content
        if isinstance(content, bytes)
        else safetensors_stream.pieces(content, where=name)
        for name, content in files.items()
    }


def tensors_of(committed: Committed, name: str) -> dict[str, Tensor]:
    """The whole tensors of a safetensors file, by name; of one in parts, joined.

    Shapes and dtypes are the file's, the device is the CPU.

    Raises:
        Damaged: If bytes are not those of the manifest.
    """
    index = None if name in committed.entries else committed.index
    if index is None or name not in index.rows:
        return _stored(committed, name)
    return held_rows(committed, index, name, lambda _, rows: range(rows))


def _stored(committed: Committed, name: str) -> dict[str, Tensor]:
    if name not in committed.entries:
        raise Malformed("the checkpoint has no such file", where=name)
    try:
        return safetensors.torch.load(committed.files[name])
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise Malformed(f"not a safetensors file: {error}", where=name) from error


def held_rows(
    committed: Committed,
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
    """The common rows; an empty range at the start of ``other`` if there are none."""
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return range(start, stop) if start < stop else range(other.start, other.start)
