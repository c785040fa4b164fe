"""One record of a source: its bytes, its name, and what the source states of it.

What cannot be a record is a `Flaw`, which says where it is and why. Whether flaws end the work or
go into quarantine is decided by who reads them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from govray.data.rows import chat, tensor_record
from govray.data.similarity.shingles import MANY_MARKS
from govray.data.sources.columns import CONTENT, UNTRAINED, refuse_untrained
from govray.errors import Malformed
from govray.governance.formats.row_schema import TARGETS, RowSchema
from govray.governance.policy.credential import Normalisation

_NAME = 200
"""Characters of an id or a URL that a record's name repeats."""


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record.

    Attributes:
        name: Of the record in its corpus. Names ascend in the order of reading.
        where: Object and row, for people.
        stated: Attribute → what the source says of the record, without repetition.
    """

    name: str
    where: str
    content: bytes
    stated: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Flaw:
    """A row or a file that cannot be a record: where it is, what is wrong, what to do."""

    where: str
    what: str
    do: str


class _Unfit(Exception):
    pass


def place(object: str, row: int) -> str:
    """How errors and reports name a row; rows count from 1."""
    return f"{object}, row {row}"


def record_of(
    object: str,
    row: int,
    raw: Mapping[str, Any],
    *,
    limit: int,
    normalisation: Sequence[Normalisation] = (),
    schema: RowSchema | None = None,
) -> SourceRecord | Flaw:
    """The record of one row.

    Args:
        row: Its number in the object, from 1.
        raw: Attribute → value: text (``str``, or UTF-8 as ``bytes``), a list of it, or ``None``.
        limit: Bytes of content that a record may have.
        schema: What the record is, if not text (`content`).
    """
    where = place(object, row)
    kind = schema.run_kind if schema else "text"
    made_of = CONTENT[kind]
    try:
        refuse_untrained(raw, kind)
        content = _other_content(schema, raw) if schema else _content(raw.get("text"))
        if len(content) > limit:
            raise _Unfit(f"the {made_of[0]} has {len(content):,} bytes, the limit is {limit:,}")
        if normalisation:
            content = normalise(content.decode(), normalisation).encode()
        stated = {
            attribute: texts
            for attribute, value in raw.items()
            if attribute not in made_of
            and attribute not in UNTRAINED.get(kind, ())
            and value is not None
            and (texts := _texts(attribute, value))
        }
    except Malformed as unfit:
        return Flaw(where, unfit.what, unfit.do or "Mend the record.")
    except _Unfit as unfit:
        return Flaw(where, str(unfit), "Mend the record, or let it go into quarantine.")
    tail = [each[:_NAME] for name in ("id", "url") for each in stated.get(name, ())]
    stated.pop("id", None)  # the URL says what its site reserves
    return SourceRecord(" ".join([f"{object}#{row:012}", *tail]), where, content, stated)


def normalise(text: str, steps: Sequence[Normalisation]) -> str:
    """``newlines``: CR LF and CR become LF. ``nfc``: Unicode's form NFC. In this order."""
    if "newlines" in steps:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "nfc" not in steps:
        return text
    # A supplier's marks stay, unlike those of a text that is compared. In their order Python has
    # nothing left to do, and the form is the same.
    return unicodedata.normalize("NFC", MANY_MARKS.sub(_in_order, text))


def _in_order(marks: re.Match[str]) -> str:
    """Marks decomposed and in canonical order (UAX 15, section 3)."""
    each = "".join(unicodedata.normalize("NFD", mark) for mark in marks[0])
    runs = groupby(each, lambda mark: unicodedata.combining(mark) > 0)
    return "".join(mark for _, run in runs for mark in sorted(run, key=unicodedata.combining))


def _content(value: Any) -> bytes:
    if value is None:
        raise _Unfit("there is no text")
    if isinstance(value, bytes):
        _decoded("text", value)
        return value
    if not isinstance(value, str):
        raise _Unfit(f"the text is {_kind(value)}")
    return _encoded("text", value)


def _texts(attribute: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        if any(isinstance(each, list) for each in value):
            raise _Unfit(f"the {attribute} is a list of lists")
        several = (_texts(attribute, each) for each in value if each is not None)
        return tuple(dict.fromkeys(text for texts in several for text in texts))
    if attribute == "id" and isinstance(value, int):
        value = str(value)
    if isinstance(value, bytes):
        value = _decoded(attribute, value)
    elif isinstance(value, str):
        _encoded(attribute, value)
    else:
        raise _Unfit(f"the {attribute} is {_kind(value)}")
    text = value.strip()
    return (text,) if text else ()


def _decoded(attribute: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _Unfit(f"the {attribute} is not UTF-8 at byte {error.start}") from None


def _encoded(attribute: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise _Unfit(f"the {attribute} has half of a surrogate pair") from None


def _kind(value: Any) -> str:
    names = {bool: "a truth value", dict: "an object", list: "a list"}
    return names.get(type(value), "a number")


_DO = "Mend the record, or let it go into quarantine."


def _other_content(schema: RowSchema, raw: Mapping[str, Any]) -> bytes:
    """The content of one row's record.

    Args:
        raw: Attribute → value: ``messages``, or ``image`` and ``label``. An image is bytes in the
            order channels, height, width, or lists of whole numbers in that order.
    """
    if schema.kind == "chat":
        if raw.get("messages") is None:
            raise Malformed(
                "there are no messages",
                do="Name their column with --column messages=COLUMN. Write a prompt and its "
                "completion as two messages. Or let the record go into quarantine.",
            )
        return chat.encode(raw["messages"])
    [image] = [each for each in schema.tensors or () if each.name != TARGETS]
    label = raw.get("label")
    if type(label) is not int or not -(1 << 63) <= label < 1 << 63:
        raise Malformed("the label is no whole number", do=_DO)
    pixels = _pixels(raw.get("image"), image.shape)
    return tensor_record.encode(schema, {image.name: pixels, TARGETS: np.array(label, np.int64)})


def _pixels(value: Any, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    if isinstance(value, bytes):
        found: npt.NDArray[Any] = np.frombuffer(value, np.uint8)
    else:
        try:
            found = np.array(value)
        except ValueError:
            raise Malformed("the lists of the image have different lengths", do=_DO) from None
        if found.dtype.kind not in "iu" or not found.ndim:
            raise Malformed("the image is no bytes and no lists of whole numbers", do=_DO)
        if found.size and not 0 <= found.min() <= found.max() <= np.iinfo(np.uint8).max:
            raise Malformed("the image has a number outside 0 to 255", do=_DO)
    # A flat image has the right order by the user's word; a gray one may leave out its channel.
    if found.shape not in ((int(np.prod(shape)),), shape, shape[1:] if shape[0] == 1 else shape):
        told = f"{found.size} bytes" if isinstance(value, bytes) else f"shape {found.shape}"
        raise Malformed(
            f"the image has {told}, --image-shape is {shape}",
            do="Decode images to bytes of one shape: channels, height, width.",
        )
    return found.astype(np.uint8).reshape(shape)
