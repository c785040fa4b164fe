"""Rows of Parquet, Arrow and CSV, a few hundred at a time.

Text comes as bytes, since neither Parquet nor Arrow checks UTF-8. Both are decoded in a process of
bounded memory (`table_process`).

CSV is read as RFC 4180 has it, by the standard library's strict reader. That of pyarrow reads on
behind a quote that is not doubled, and changes the text. TSV knows no quotes (IANA,
text/tab-separated-values). Neither has an end mark: a file that is cut inside its last field goes
unnoticed.
"""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from govray.data.corpus import first_line
from govray.data.sources.objects import Format, SourceObject
from govray.data.tables import table_process
from govray.errors import InfrastructureFailed, Malformed

Raw = tuple[int, dict[str, Any] | str]
"""A row's number from 1, and its value by attribute, or what is wrong with it."""

_BUFFER = 1 << 20  # bytes read ahead


class Table:
    """One open table. ``schema``: its columns. Those of CSV are all text."""

    def __init__(self, found: SourceObject, format: Format, limit: int) -> None:
        """Open it. ``limit`` is the size of the largest record, in bytes."""
        self._found, self._format, self._limit = found, format, limit
        with reading(found):
            self.schema = self._schema()

    def rows(self, columns: Mapping[str, str]) -> Iterator[Raw]:
        """Every row, with the attributes whose ``columns`` are given."""
        with reading(self._found) as progress:
            for each in self._rows(columns):
                yield each
                progress[0] = each[0]

    def _schema(self) -> pa.Schema:
        if self._format != "csv":
            return table_process.schema_of(self._found, self._format, self._limit)
        return pa.schema([(name, pa.string()) for name in next(self._csv(), ())])

    def _rows(self, columns: Mapping[str, str]) -> Iterator[Raw]:
        if self._format == "csv":
            yield from self._csv_rows(columns)
            return
        row = 0
        names = list(dict.fromkeys(columns.values()))
        for batch in table_process.batches(self._found, self._format, names, self._limit):
            for values in _values(batch, columns):
                row += 1
                yield row, values

    def _csv(self) -> Iterator[list[str]]:
        """The lines of a CSV, the header first, without empty ones."""
        tabs = ".tsv" in self._found.suffixes
        most = max(self._limit, _BUFFER)
        csv.field_size_limit(most)  # the module's own bound is 128 KiB
        with text_stream(self._found) as stream:
            text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
            lines = _bounded_lines(text, most)
            if tabs:
                yield from filter(None, csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
            else:
                yield from filter(None, csv.reader(lines, strict=True))

    def _csv_rows(self, columns: Mapping[str, str]) -> Iterator[Raw]:
        lines = self._csv()
        header = next(lines, [])
        places = {attribute: header.index(name) for attribute, name in columns.items()}
        for row, fields in enumerate(lines, 1):
            if len(fields) != len(header):
                yield row, _RAGGED
                continue
            texts = (fields[at].encode("utf-8", "surrogateescape") for at in places.values())
            yield row, dict(zip(places, texts, strict=True))


_RAGGED = "the row has more or fewer fields than the header"


def _bounded_lines(text: io.TextIOBase, most: int) -> Iterator[str]:
    while line := text.readline(most + 1):
        if len(line) > most:
            raise csv.Error("a row of CSV is larger than the limit")
        yield line


@contextmanager
def reading(found: SourceObject) -> Iterator[list[int]]:
    """Turn what a reader raises into one error. The yielded list holds the last row read."""
    progress = [0]
    try:
        yield progress
    except (OSError, EOFError, ValueError, csv.Error, pa.ArrowException, tarfile.TarError) as error:
        what = first_line(error)
        raise Malformed(
            f"cannot be read after row {progress[0]:,} ({what})",
            where=found.where,
            do="The file may be cut short or damaged: fetch or write it again.",
        ) from error
    except InfrastructureFailed as error:
        raise InfrastructureFailed(
            f"{error.what}, after row {progress[0]:,}", where=error.where, do=error.do
        ) from error


def open_stream(found: SourceObject) -> pa.NativeFile:
    """The object's bytes, decompressed as its suffix says."""
    if found.compression and not found.stamp.size:
        raise pa.ArrowInvalid("the compressed file is empty")
    file = found.open()
    return pa.CompressedInputStream(file, found.compression) if found.compression else file


def text_stream(found: SourceObject) -> BinaryIO:
    """The same with lines; pyarrow's own has none."""
    return io.BufferedReader(open_stream(found), _BUFFER)


def _values(batch: pa.RecordBatch, columns: Mapping[str, str]) -> Iterator[dict[str, Any] | str]:
    lists = [_listed(_column(batch, path)) for path in columns.values()]
    for values in zip(*lists, strict=True):
        row = dict(zip(columns, values, strict=True))
        unread = [attribute for attribute, value in row.items() if value is _NO_TEXT]
        yield f"text of the {unread[0]} is not UTF-8" if unread else row


_NO_TEXT = object()
"""Stands for a value with bytes in it that are no text: structs have text that pyarrow decodes."""


def _listed(column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_one(each) for each in column]


def _one(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return _NO_TEXT


def _column(batch: pa.RecordBatch, path: str) -> pa.Array:
    if path in batch.schema.names:
        column = batch.column(path)
    else:
        first, *rest = path.split(".")
        column = pc.struct_field(batch.column(first), rest)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return column
    if pa.types.is_nested(kind):
        texts = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not texts or pa.types.is_nested(kind.value_type) or pa.types.is_integer(kind.value_type):
            return column  # messages, or an image
        return column.cast(pa.list_(pa.binary()))
    return column.cast(pa.large_binary())
