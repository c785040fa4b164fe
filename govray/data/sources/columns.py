"""Which column of a source is what: the one mapping that all formats share.

By default an attribute is read from the column of its own name. A dot leads into a struct, so
``license=metadata.license`` is the member of a column. Each object is asked for its own columns, so
what only one of them states counts. A column that seems to state terms and is not read is refused:
terms that nobody reads would be overlooked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from govray.errors import Malformed, UsageError
from govray.governance.formats.row_schema import RowKind

CONTENT: Mapping[RowKind, tuple[str, ...]] = {
    "text": ("text",),
    "chat": ("messages",),
    "images": ("image", "label"),
}
"""What a record's content is made of, by what the records are. All of it has to be there."""

_TOOLS = (
    "the tools of a conversation can't be trained on yet",
    "Leave such records out. Where a conversation is right without, leave the column out with "
    "--column {}=.",
)
_PAIRS = (
    "pairs of a chosen and a rejected answer can't be trained on yet",
    "Write the answers to learn as messages. Leave the column out with --column {}=.",
)
UNTRAINED: Mapping[RowKind, Mapping[str, tuple[str, str]]] = {
    "chat": {
        "tools": _TOOLS,
        "functions": _TOOLS,
        "documents": _TOOLS,
        "chosen": _PAIRS,
        "rejected": _PAIRS,
        "conversations": (
            "conversations of from and value (ShareGPT) are not read",
            "Write role and content in a column messages: human is user, gpt is assistant. "
            "If {0} has those, name it with --column messages={0}.",
        ),
    },
}
"""Columns that belong to a record, and that nothing trains on: why not, and what to do."""

_NOTHING = ("[]", "{}", "null")
"""JSON texts that say no more than no value does."""

STATED = ("id", "url", "license", "jurisdiction", "sensitivity", "language", "split")
TERMS = ("license", "jurisdiction", "sensitivity")
"""What decides which corpus a record belongs to."""

_WANTED = {
    "messages": "messages, or of text that is JSON of them,",
    "image": "bytes, or of lists of whole numbers,",
    "label": "whole numbers",
}
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_LISTED = frozenset({*TERMS, "language"})  # several may be stated of one record

_ALIKE = {
    "license": re.compile(r"licen[cs]|spdx", re.IGNORECASE),
    "jurisdiction": re.compile(r"jurisdiction", re.IGNORECASE),
    "sensitivity": re.compile(r"sensitiv", re.IGNORECASE),
}
"""Names of columns that seem to state an attribute."""


@dataclass(frozen=True)
class ColumnMapping:
    """Attribute → column; an attribute that is not named has the column of its own name, if any.
    ``named``: the columns that were named; ``None`` for an attribute that is not to be read."""

    named: Mapping[str, str | None] = field(default_factory=dict)
    rows: RowKind = "text"

    @property
    def attributes(self) -> tuple[str, ...]:
        """Those that such records may have."""
        untrained = [
            each for each in UNTRAINED.get(self.rows, ()) if each not in self.named.values()
        ]
        return (*CONTENT[self.rows], *untrained, *STATED)

    @classmethod
    def parse(cls, options: Iterable[str], rows: RowKind = "text") -> ColumnMapping:
        """From ``attribute=column`` each; ``attribute=`` leaves the attribute out."""
        attributes = cls(rows=rows).attributes
        named: dict[str, str | None] = {}
        for option in options:
            attribute, equals, column = option.partition("=")
            if not equals or attribute not in attributes or attribute in named:
                raise UsageError(
                    f"{option!r} names no attribute, or one for the second time",
                    where="--column",
                    do=f"Write ATTRIBUTE=COLUMN, with one of {', '.join(attributes)}.",
                )
            named[attribute] = column or None
        for each in CONTENT[rows]:
            if named.get(each, "") is None:
                what = f"the {each} cannot be left out"
                raise UsageError(what, where="--column", do="Name its column.")
        return cls(named, rows)

    def resolve(self, schema: pa.Schema, *, where: str) -> dict[str, str]:
        """The column of each attribute that a table has."""
        found: dict[str, str] = {}
        for attribute in self.attributes:
            path = self.named.get(attribute, attribute)
            if path is None:
                continue
            if (kind := _type(schema, path, where)) is None:
                if attribute in CONTENT[self.rows]:
                    refuse_untrained({name: name for name in schema.names}, self.rows, where)
                if attribute in self.named or attribute in CONTENT[self.rows]:
                    raise UsageError(
                        f"no column {path!r} for the attribute {attribute!r}",
                        where=where,
                        do=f"Name one with --column {attribute}=COLUMN. "
                        f"There are: {', '.join(schema.names)}.",
                    )
                continue
            if pa.types.is_null(kind) and attribute not in CONTENT[self.rows]:
                continue  # no row states anything there
            if pa.types.is_null(kind):
                raise UsageError(
                    f"column {path!r} has no value at all, so no row has the {attribute}",
                    where=where,
                    do=f"Name the column that has it with --column {attribute}=COLUMN, or leave "
                    "the file out.",
                )
            if not _readable(attribute, kind):
                raise UsageError(
                    f"column {path!r} is of type {kind}, which cannot be the {attribute}",
                    where=where,
                    do=f"Name a column of {_WANTED.get(attribute, 'text')} with --column "
                    f"{attribute}=COLUMN.",
                )
            found[attribute] = path
        self.check_overlooked(_paths(schema), found, where)
        return found

    def seeming(self, path: str) -> str | None:
        """Which of the terms a name seems to state, if it is not decided where that is read."""
        for attribute, alike in _ALIKE.items():
            if attribute not in self.named and path != attribute and alike.search(path):
                return attribute
        return None

    def overlooked(self, path: str, attribute: str, where: str) -> UsageError:
        """The error where a name seems to state terms that are not read anywhere."""
        return UsageError(
            f"{path!r} seems to state the {attribute} and would not be read",
            where=where,
            do=f"Read it with --column {attribute}={path}, or leave it out with "
            f"--column {attribute}=.",
        )

    def check_overlooked(self, paths: Iterable[str], found: Iterable[str], where: str) -> None:
        """Raise ``UsageError`` if one of ``paths`` seems to state terms that are not ``found``."""
        for path in paths:
            attribute = self.seeming(path)
            if attribute and attribute not in found:
                raise self.overlooked(path, attribute, where)

    def partition(self, name: str, where: str) -> dict[str, str]:
        """What folders state, as Hive has it: ``license=MIT/part-0.parquet``."""
        pairs = (folder.partition("=") for folder in name.split("/")[:-1])
        keys = {unquote(key): unquote(value) for key, equals, value in pairs if equals}
        read = {each: self.named.get(each, each) for each in STATED}
        stated = {each: keys[path] for each, path in read.items() if path in keys}
        self.check_overlooked(keys, stated, where)
        return {each: value for each, value in stated.items() if value != _HIVE_NULL}

    def keys(self) -> dict[str, str]:
        """Where each attribute may be in rows that have no schema."""
        paths = {each: self.named.get(each, each) for each in self.attributes}
        return {each: path for each, path in paths.items() if path is not None}


def refuse_untrained(row: Mapping[str, Any], rows: RowKind, where: str | None = None) -> None:
    """Raise ``Malformed`` if a row has a value that a record of such rows can't hold.
    ``row``: attribute → value."""
    for name, (what, do) in UNTRAINED.get(rows, {}).items():
        value = row.get(name)
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        if text and text not in _NOTHING:
            raise Malformed(f"it has {name!r}: {what}", where=where, do=do.format(name))


class ColumnsSeen:
    """Which objects of a source have which columns: told where they disagree."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, ...], tuple[int, str]] = {}

    def note(self, object: str, attributes: Iterable[str]) -> None:
        self._count(tuple(sorted(attributes)), 1, object)

    def merge(self, other: ColumnsSeen) -> None:
        """Count what another process saw behind this one."""
        for attributes, (objects, first) in other._objects.items():
            self._count(attributes, objects, first)

    def _count(self, attributes: tuple[str, ...], objects: int, first: str) -> None:
        before, already = self._objects.get(attributes, (0, first))
        self._objects[attributes] = before + objects, already

    def differing(self) -> list[dict[str, Any]]:
        """Attributes, how many objects have just these, and the first; empty if all agree."""
        if len(self._objects) < 2:
            return []
        return [
            {"attributes": [*attributes], "objects": objects, "first": first}
            for attributes, (objects, first) in sorted(self._objects.items())
        ]


def member_paths(value: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a row without schema, and those of its objects, with dots."""
    for key, inner in value.items():
        yield key
        if isinstance(inner, dict):
            yield from (f"{key}.{path}" for path in inner)


def member(value: Any, path: str) -> Any:
    """What a row without schema has under ``path``; ``None`` if nothing."""
    if not isinstance(value, dict):
        return None
    if path in value or "." not in path:
        return value.get(path)
    first, _, rest = path.partition(".")
    return member(value.get(first), rest)


def _paths(schema: pa.Schema) -> Iterator[str]:
    """The names of columns, and of structs' members, with dots."""
    pending = [(each.name, each.type) for each in schema]
    for path, kind in pending:
        yield path
        if pa.types.is_struct(kind):
            pending += [(f"{path}.{each.name}", each.type) for each in kind]


def _type(schema: pa.Schema, path: str, where: str) -> pa.DataType | None:
    """The type of a column, or of a struct's member."""
    if (count := schema.names.count(path)) > 1:
        raise UsageError(
            f"{count} columns have the name {path!r}", where=where, do="Rename all but one."
        )
    if count:
        return schema.field(path).type
    first, *rest = path.split(".")
    kind = schema.field(first).type if rest and schema.names.count(first) == 1 else None
    for name in rest:
        if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _readable(attribute: str, kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if attribute in _LISTED and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        kind = kind.value_type
    if any(attribute in each for each in UNTRAINED.values()) and pa.types.is_nested(kind):
        return True
    if attribute in ("id", "label") and pa.types.is_integer(kind):
        return True
    if attribute == "messages" and _is_list(kind):
        return bool(pa.types.is_struct(kind.value_type))
    if attribute == "image":
        while _is_list(kind):
            kind = kind.value_type
            if pa.types.is_integer(kind):
                return True
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
    if attribute == "label":
        return False
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    data = (pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in (*text, *data))
