"""Records of named tensors: one plain encoding, and the one layout of a schema.

A record's content is a safetensors file: eight bytes with the header's length, a header in JSON,
the tensors' bytes in the schema's order. Header and order follow from the schema, so equal tensors
have equal bytes and equal hashes. No pickle is involved. A row is the record without the header,
four bytes in each word, the last one filled up with zeros.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from govray.errors import Malformed
from govray.governance.formats.row_schema import TARGETS, WORD_BYTES, NamedTensor, RowSchema

Words = npt.NDArray[np.uint32]

_ALIGNED = 8
_NAMES = {"int64": "I64", "float32": "F32", "uint8": "U8"}
_DTYPES = {"int64": "<i8", "float32": "<f4", "uint8": "u1"}
_AGAIN = "Build the corpus again with: govray corpus build --rows images."


@lru_cache(maxsize=8)
def header(schema: RowSchema) -> bytes:
    """What every record of a schema begins with."""
    described, start = {}, 0
    for each in schema.tensors or ():
        described[each.name] = {
            "dtype": _NAMES[each.dtype],
            "shape": list(each.shape),
            "data_offsets": [start, start + each.bytes],
        }
        start += each.bytes
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def encode(schema: RowSchema, tensors: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """A record's content. ``tensors``: by name, in the schema's dtypes and shapes."""
    parts = [header(schema)]
    if extra := sorted(tensors.keys() - {each.name for each in schema.tensors or ()}):
        raise Malformed(f"the schema has no tensor {extra[0]!r}", do="Leave it out.")
    for each in schema.tensors or ():
        value = tensors.get(each.name)
        stated = (each.dtype, each.shape)
        if value is None or (found := (value.dtype.name, value.shape)) != stated:
            told = "missing" if value is None else f"{found[0]} of shape {found[1]}"
            raise Malformed(
                f"tensor {each.name!r} is {told}, the schema says {each.dtype} of shape "
                f"{each.shape}",
                do="Give every record the tensors of the schema.",
            )
        parts.append(np.ascontiguousarray(value).astype(_DTYPES[each.dtype]).tobytes())
    content = b"".join(parts)
    row(schema, content)
    return content


def row(schema: RowSchema, content: bytes | memoryview) -> Words:
    """The words ``[schema.words]`` of the row that a record is."""
    expected = header(schema)
    stop = len(expected) + schema.bytes
    if len(content) != stop or bytes(content[: len(expected)]) != expected:
        raise Malformed(
            "the record's tensors are not those of the credential's row schema", do=_AGAIN
        )
    filled = bytes(content[len(expected) :]).ljust(WORD_BYTES * schema.words, b"\0")
    words = np.frombuffer(filled, "<u4")
    label = int(tensors(schema, words[None])[TARGETS][0])
    if not 0 <= label < (schema.classes or 0):
        raise Malformed(
            f"the label is {label}, the row schema has {schema.classes} classes from 0 on",
            do="Mend the label, or build the corpus with more --classes.",
        )
    return words


def tensors(
    schema: RowSchema, words: npt.NDArray[np.unsignedinteger]
) -> dict[str, npt.NDArray[np.generic]]:
    """The named tensors of rows.

    Args:
        words: ``[rows, schema.words]``.

    Returns:
        Arrays of the schema's dtypes, first dimension: rows.
    """
    data = np.ascontiguousarray(words, "<u4").view(np.uint8)
    found, start = {}, 0
    for each in schema.tensors or ():
        part = np.ascontiguousarray(data[:, start : start + each.bytes])
        found[each.name] = _viewed(part, each)
        start += each.bytes
    return found


def _viewed(part: npt.NDArray[np.uint8], tensor: NamedTensor) -> npt.NDArray[np.generic]:
    return part.view(_DTYPES[tensor.dtype]).reshape(len(part), *tensor.shape)
