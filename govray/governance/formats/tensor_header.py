"""The header of a safetensors file: what it says of every byte behind it.

A file is an 8-byte little-endian length, that many bytes of JSON, and the tensors' bytes. Of a
sound file each byte belongs to exactly one tensor: no two overlap, none is left over. Then a loader
can find only the tensors that the header names. If a name is absent, so is the tensor.

This refuses all that the ``safetensors`` library refuses, and some of what that reads. Examples are
repeated names, unknown fields, lists in place of objects, null metadata, and integers beyond 2^53 -
1. No writer that is known makes those.

The base install has no tensor library, so the rules are written out.

Source: https://huggingface.co/docs/safetensors (the format), and ``Metadata::validate`` and
``SafeTensors::read_metadata`` of the library's version 0.8.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeGuard

from govray.errors import Malformed, UsageError
from govray.governance.formats import canonical_json

MAX_HEADER = 64 << 20
"""Bytes of JSON that are read at most."""

LENGTH = 8
"""Bytes of the length before the JSON."""

DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""The format's words for the kinds of numbers, and the bits of one."""

_MAX_BITS = (1 << 64) - 1  # the library counts in this, and refuses what overflows it


@dataclass(frozen=True)
class Described:
    """One tensor as a header has it: ``dtype`` in the format's words, ``size`` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


def read_header(file: BinaryIO, *, where: str, size: int | None = None) -> list[Described]:
    """The tensors of a file that is open at its beginning, in the order of their bytes.

    Args:
        file: Read up to where the tensors' bytes begin.
        size: Bytes of the whole file; None if that is not known here, and so not checked.
    """
    length = header_length(_exactly(file, LENGTH, where), where=where)
    text = _exactly(file, length, where)
    return parse_header(text, where=where, rest=None if size is None else size - LENGTH - length)


def header_length(data: bytes, *, where: str) -> int:
    """How many bytes of JSON follow the first 8 of a file."""
    length = int.from_bytes(data, "little")
    if length > MAX_HEADER:
        raise Malformed(f"a header of {length} bytes", where=where)
    return length


def parse_header(text: bytes, *, where: str, rest: int | None = None) -> list[Described]:
    """The tensors that the JSON of a header names, in the order of their bytes.

    Args:
        text: The JSON, with the spaces that may pad it.
        rest: Bytes that follow it in the file; None if that is not known.
    """
    if not text.startswith(b"{"):
        raise Malformed("the safetensors header does not begin with {", where=where)
    # The format pads the header with spaces.
    value = canonical_json.parse(text.rstrip(b" "), limit=MAX_HEADER, where=where)
    if not isinstance(value, dict):
        raise Malformed("the safetensors header is no object of tensors", where=where)
    _check_metadata(value.pop("__metadata__", {}), where)
    placed = sorted(
        (_entry(name, entry, where) for name, entry in value.items()), key=lambda each: each[:2]
    )
    end = 0
    for start, stop, tensor in placed:
        if start != end:
            how = "overlap those of another" if start < end else "leave a hole before them"
            raise Malformed(f"the bytes of tensor {tensor.name!r} {how}", where=where)
        end = stop
    if rest is not None and rest != end:
        how = "after the last tensor" if rest > end else "short of the last tensor's end"
        raise Malformed(f"the file ends {abs(rest - end)} bytes {how}", where=where)
    return [tensor for _, _, tensor in placed]


def header_bytes(tensors: Iterable[Described], *, where: str) -> bytes:
    """The length and the JSON that a file of these tensors, in this order, begins with."""
    described: dict[str, Any] = {}
    begin = 0
    for each in tensors:
        described[each.name] = {
            "dtype": each.dtype,
            "shape": list(each.shape),
            "data_offsets": [begin, begin + each.size],
        }
        begin += each.size
    try:
        text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise UsageError("a tensor's name is no Unicode text", where=where) from None
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _exactly(file: BinaryIO, count: int, where: str) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise Malformed("the safetensors header is cut off", where=where)
    return data


def _check_metadata(value: canonical_json.JSON, where: str) -> None:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise Malformed("the header's __metadata__ is no object of texts", where=where)


def _entry(name: str, value: canonical_json.JSON, where: str) -> tuple[int, int, Described]:
    """Where the tensor's bytes begin and end, and what it is."""
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "data_offsets"}:
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if (
            isinstance(dtype, str)
            and dtype in DTYPE_BITS
            and _naturals(shape)
            and _naturals(offsets)
            and len(offsets) == 2
        ):
            start, stop = offsets
            if start <= stop and stop - start == _size(dtype, shape):
                return start, stop, Described(name, dtype, tuple(shape), stop - start)
    raise Malformed(f"the header's entry of {name!r} is malformed", where=where)


def _naturals(value: canonical_json.JSON) -> TypeGuard[list[int]]:
    # A bool is an int to Python, and none to JSON.
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


def _size(dtype: str, shape: Sequence[int]) -> int | None:
    """Bytes of such a tensor; None if they are no whole number, or too many to count."""
    bits = 1
    for each in (*shape, DTYPE_BITS[dtype]):
        bits *= each
        if bits > _MAX_BITS:
            return None
    return None if bits % 8 else bits // 8
