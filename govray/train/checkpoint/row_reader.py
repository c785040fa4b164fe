"""Some rows of each tensor of a safetensors file, and the digest of the whole file, in one reading.

A rank that shares a model reads its rows of existing weights. Every byte passes by once, from start
to end, and is hashed; what is not wanted is let go at once. So the rows are of the bytes whose
digest is returned.

Source: https://github.com/huggingface/safetensors (format).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, BinaryIO

import torch
from torch import Tensor

from govray.errors import Malformed
from govray.governance.formats.tensor_header import Described, read_header
from govray.train.checkpoint.commit_reader import PIECE
from govray.train.checkpoint.safetensors_stream import dtype_called


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
