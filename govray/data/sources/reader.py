"""From a source to its records, one by one and in order: the same for every format.

Reading is a plain loop with pyarrow, without a cluster. Order is part of what gets signed, and
errors name rows. Ray Data's readers give neither rows' numbers nor, by default, an order. Memory is
bounded by a batch of rows and the largest record.

A damaged object, a missing column or a source that changes ends the reading. A row that cannot be a
record is a `Flaw`, and reading goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from govray.data.corpus import MAX_RECORD_BYTES, disk_errors
from govray.data.sources import json_reader
from govray.data.sources.columns import TERMS, ColumnMapping, ColumnsSeen
from govray.data.sources.objects import RecordSource, SourceObject
from govray.data.sources.quarantine import RecordFilter
from govray.data.sources.record import Flaw, SourceRecord, normalise, place, record_of
from govray.data.tables.table_reader import Raw, Table
from govray.errors import UsageError
from govray.governance.formats.row_schema import RowSchema
from govray.governance.policy.credential import Normalisation

ROW_LIMIT = 16 * 1024 * 1024
"""Bytes of a row's text unless the user says otherwise; for a file it is what a corpus holds."""


@dataclass(frozen=True)
class Reading:
    """How every object of a source is read, as for `read` and `RecordFilter`."""

    columns: ColumnMapping
    limit: int | None = None
    normalisation: Sequence[Normalisation] = ()
    schema: RowSchema | None = None
    refuse_flaws: bool = False
    only_split: str | None = None

    def filter(self) -> RecordFilter:
        """What is to take the records, and count the others."""
        return RecordFilter(refuse_flaws=self.refuse_flaws, only_split=self.only_split)

    def records(
        self, source: RecordSource, selection: RecordFilter, *, whole: bool = True
    ) -> Iterator[SourceRecord]:
        """The records that are taken. Raises as `read`, and as `RecordFilter.of`."""
        found = read(
            source,
            self.columns,
            limit=self.limit,
            normalisation=self.normalisation,
            schema=self.schema,
            seen=selection.columns,
            whole=whole,
        )
        return selection.of(found)


def read(
    source: RecordSource,
    columns: ColumnMapping | None = None,
    *,
    limit: int | None = None,
    normalisation: Sequence[Normalisation] = (),
    schema: RowSchema | None = None,
    seen: ColumnsSeen | None = None,
    whole: bool = True,
) -> Iterator[SourceRecord | Flaw]:
    """Every record of ``source`` in ascending order of names, and what cannot be one.

    Args:
        limit: Bytes of the largest record.
        normalisation: What to do to the text; by default nothing.
        schema: What the records are, if not text; ``columns`` are of that kind.
        seen: Hears which objects have which columns.
        whole: Whether these are all objects of a source, which is looked at once more at the end.

    Raises:
        UsageError: The source changes meanwhile, a column is missing or of another type, terms
            would be overlooked, or the mapping names columns of plain files.
    """
    columns, seen = columns or ColumnMapping(), seen or ColumnsSeen()
    if schema is not None and (source.format == "files" or normalisation):
        raise UsageError(
            f"records of {schema.run_kind} come from tables without normalisation",
            where="--rows",
            do="Give Parquet, Arrow or JSON lines, and leave the normalisation out.",
        )
    if source.format == "files" and columns.named:
        raise UsageError(
            "plain files have no columns",
            where="--column",
            do="Leave it out, or say what the files are with --format.",
        )
    for found in source.objects:
        found.check_unchanged()
        folders = columns.partition(found.name, found.where)
        if source.format == "files":
            yield _file(found, limit or MAX_RECORD_BYTES, normalisation, folders)
        else:
            most = min(limit or ROW_LIMIT, MAX_RECORD_BYTES)
            for row, raw in _rows(source, found, columns, most, seen):
                if isinstance(raw, str):
                    yield Flaw(place(found.name, row), raw, "Mend the row.")
                    continue
                if found.split and raw.get("split") is None:
                    raw["split"] = found.split
                _add(raw, folders)
                yield record_of(
                    found.name, row, raw, limit=most, normalisation=normalisation, schema=schema
                )
        found.check_unchanged()
    if whole:
        source.check_unchanged()


def _rows(
    source: RecordSource,
    found: SourceObject,
    columns: ColumnMapping,
    limit: int,
    seen: ColumnsSeen,
) -> Iterator[Raw]:
    match source.format:
        case "jsonl":
            return json_reader.lines(found, columns, limit)
        case "webdataset":
            return json_reader.samples(found, columns, limit)
        case format:
            table = Table(found, format, limit)
            paths = columns.resolve(table.schema, where=found.where)
            seen.note(found.name, paths)
            return table.rows(paths)


def _add(raw: dict[str, Any], folders: Mapping[str, str]) -> None:
    """What the folders state of a row. Terms that its columns state too have to agree."""
    for attribute, value in folders.items():
        beside = raw.get(attribute)
        if beside is None:
            raw[attribute] = value
        elif attribute in TERMS:
            raw[attribute] = [*(beside if isinstance(beside, list) else [beside]), value]


def _file(
    found: SourceObject,
    limit: int,
    normalisation: Sequence[Normalisation],
    folders: Mapping[str, str],
) -> SourceRecord | Flaw:
    """A whole file as it is; only normalisation asks for UTF-8."""
    if found.stamp.size > limit:
        what = f"the file has {found.stamp.size:,} bytes, the limit is {limit:,}"
        return Flaw(found.name, what, "Split it, or raise the limit.")
    with disk_errors(found.where), found.open() as file:
        content = file.read()
    if normalisation:
        try:
            content = normalise(content.decode(), normalisation).encode()
        except UnicodeDecodeError as error:
            what = f"not UTF-8 at byte {error.start}, so it cannot be normalised"
            return Flaw(found.name, what, "Remove it, or build without normalisation.")
    stated = {each: (value,) for each, value in folders.items() if each != "id"}
    return SourceRecord(found.name, found.name, content, stated)
