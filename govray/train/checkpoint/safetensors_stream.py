"""The bytes of a safetensors file in pieces, written and read without a copy of the whole.

The same bytes as ``safetensors.torch.save``: an 8-byte little-endian length, then JSON padded with
spaces to a multiple of 8, then the tensors. They are ordered by dtype, the widest first, and then
by name. Equal tensors give equal bytes.

``safetensors`` itself reads tensors, and `govray.governance.formats.tensor_header` reads and
writes their header.

Source: https://github.com/huggingface/safetensors (format, and the order that its
``serialize`` writes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor

from govray.errors import Malformed, UsageError
from govray.governance.formats.tensor_header import Described, header_bytes, read_header
from govray.train.checkpoint.commit_reader import PIECE

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


_CALLED = {name: dtype for dtype, (_, name) in _DTYPES.items()}


def dtype_called(name: str, tensor: str, where: str) -> torch.dtype:
    """The dtype that the format calls so."""
    if name not in _CALLED:
        raise Malformed(f"{tensor} holds {name}, which torch has no dtype for", where=where)
    return _CALLED[name]


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
