"""Row schemas: what the records of a corpus are, and what one of its rows holds.

Without a schema, records are text or other bytes, packed behind each other.

* ``chat``: a record is a conversation in canonical JSON, whose roles its hash binds. Rows are
  packed tokens, of which some are no loss targets.
* ``tensors``: a record is a set of named tensors of one layout. It is a row of its own.

A row of tensors is counted like one of packed tokens with a context of 1. The record counts as one
token, and its separator follows. So a row has one loss target, and plan, coverage and trace need
not know what it holds.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Positive
from govray.governance.formats.document import Document

TARGETS = "targets"
"""The tensor that holds a record's class: one int64."""

MASKED = 1 << 31
"""Set in a stored word of a chat row whose token is no loss target."""

CHAT_MARKERS = 5
"""Ids behind the separator by which conversations are told apart: four roles, and an end."""

WORD_BYTES = 4
"""Of a stored word of a row of tensors."""

MAX_ROW_BYTES = 1 << 26

RowKind: TypeAlias = Literal["text", "chat", "images"]
"""What a run's records are, as experiment files and commands name it."""

DTYPE_BYTES = {"int64": 8, "float32": 4, "uint8": 1}


class NamedTensor(Document):
    """One tensor of every record. Its shape is that of one record."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    dtype: Literal["int64", "float32", "uint8"]
    shape: Annotated[tuple[Positive, ...], Field(max_length=8)]

    @property
    def bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)


class RowSchema(Document):
    """What records and rows are; of a corpus in its credential, of a run in its manifest.

    Attributes:
        kind: See the module.
        tensors: In the order of a record's bytes: wide numbers first, then by name.
        classes: Targets are in ``[0, classes)``.
    """

    kind: Literal["chat", "tensors"]
    tensors: Annotated[tuple[NamedTensor, ...], Field(min_length=2, max_length=16)] | None = None
    classes: Positive | None = None

    @model_validator(mode="after")
    def _well_formed(self) -> Self:
        if (self.kind == "tensors") != (self.tensors is not None and self.classes is not None):
            raise ValueError("tensors have tensors and classes, chat has neither")
        if self.tensors is None and self.classes is not None:
            raise ValueError("chat has no classes")
        found = self.tensors or ()
        order = [(-DTYPE_BYTES[each.dtype], each.name) for each in found]
        if order != sorted(set(order)) or len({each.name for each in found}) != len(found):
            raise ValueError("tensors are not sorted by width and name, or not distinct")
        if found and not any(
            (each.name, each.dtype, each.shape) == (TARGETS, "int64", ()) for each in found
        ):
            raise ValueError(f"no tensor {TARGETS!r} of one int64")
        if self.bytes > MAX_ROW_BYTES:
            raise ValueError(f"a record has {self.bytes} bytes, the limit is {MAX_ROW_BYTES}")
        return self

    @property
    def bytes(self) -> int:
        """Of all tensors of a record."""
        return sum(each.bytes for each in self.tensors or ())

    @property
    def words(self) -> int:
        """Words of a row of tensors: four bytes each, the last one filled up with zeros."""
        return -(-self.bytes // WORD_BYTES)

    @property
    def run_kind(self) -> RowKind:
        """What an experiment file calls it."""
        return "chat" if self.kind == "chat" else "images"

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, ``sha256:<hex>``."""
        return canonical_json.sha256(canonical_json.encode(self.to_json()))


def image_schema(shape: tuple[int, int, int], classes: int) -> RowSchema:
    """The schema of uint8 images of (channels, height, width) with one label each."""
    return RowSchema(
        kind="tensors",
        tensors=(
            NamedTensor(name=TARGETS, dtype="int64", shape=()),
            NamedTensor(name="image", dtype="uint8", shape=shape),
        ),
        classes=classes,
    )


CHAT = RowSchema(kind="chat")
