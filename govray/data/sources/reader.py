"""From a source to its records, one by one and in order: the same for every format.

Reading is a plain loop with pyarrow, without a cluster. Order is part of what gets signed, and
errors name rows. Ray Data's readers give neither rows' numbers nor, by default, an order. Memory is
bounded by a batch of rows and the largest record.

A damaged object, a missing column or a source that changes ends the reading. A row that cannot be a
record is a `Flaw`, and reading goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from govray.data.corpus import MAX_RECORD_BYTES, disk_errors
from govray.data.sources import json_reader
from govray.data.sources.columns import ColumnMapping
from govray.data.sources.objects import RecordSource, SourceObject
from govray.data.sources.record import Flaw, SourceRecord, normalise, place, record_of
from govray.data.sources.table_reader import Raw, Table
from govray.errors import UsageError
from govray.governance.formats.row_schema import RowSchema
from govray.governance.policy.credential import Normalisation

ROW_LIMIT = 16 * 1024 * 1024
"""Bytes of a row's text unless the user says otherwise; for a file it is what a corpus holds."""


def read(
    source: RecordSource,
    columns: ColumnMapping | None = None,
    *,
    limit: int | None = None,
    normalisation: Sequence[Normalisation] = (),
    schema: RowSchema | None = None,
) -> Iterator[SourceRecord | Flaw]:
    """Every record of ``source`` in ascending order of names, and what cannot be one.

    Args:
        source: What `find` returned.
        columns: Which column is what.
        limit: Bytes of the largest record.
        normalisation: What to do to the text; by default nothing.
        schema: What the records are, if not text; ``columns`` are of that kind.

    Raises:
        UsageError: The source changes meanwhile, a column is missing or of another type, or the
            mapping names columns of plain files.
        Malformed: An object cannot be read to its end.
    """
    yield from read_objects(
        source,
        columns or ColumnMapping(),
        limit=limit,
        normalisation=normalisation,
        schema=schema,
    )
    source.check_unchanged()


def decided(source: RecordSource, columns: ColumnMapping) -> ColumnMapping:
    """The mapping that the first object gives to those behind it. Raises as `read`."""
    if not source.objects or source.format not in ("csv", "parquet", "arrow"):
        return columns
    first = source.objects[0]
    first.check_unchanged()
    schema = Table(first, source.format, ROW_LIMIT).schema
    return columns.decided(columns.resolve(schema, where=first.where))


def read_objects(
    source: RecordSource,
    columns: ColumnMapping,
    *,
    limit: int | None,
    normalisation: Sequence[Normalisation],
    schema: RowSchema | None,
) -> Iterator[SourceRecord | Flaw]:
    """As `read`, without a last look at the source as a whole."""
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
        if source.format == "files":
            yield _file(found, limit or MAX_RECORD_BYTES, normalisation)
        else:
            most = min(limit or ROW_LIMIT, MAX_RECORD_BYTES)
            rows, columns = _rows(source, found, columns, most)
            for row, raw in rows:
                if isinstance(raw, str):
                    yield Flaw(place(found.name, row), raw, "Mend the row.")
                    continue
                if found.split and raw.get("split") is None:
                    raw["split"] = found.split
                yield record_of(
                    found.name, row, raw, limit=most, normalisation=normalisation, schema=schema
                )
        found.check_unchanged()


def _rows(
    source: RecordSource, found: SourceObject, columns: ColumnMapping, limit: int
) -> tuple[Iterator[Raw], ColumnMapping]:
    """The rows of an object, and the mapping for those behind it."""
    match source.format:
        case "jsonl":
            return json_reader.lines(found, columns.keys(), limit), columns
        case "webdataset":
            return json_reader.samples(found, columns.keys(), limit), columns
        case format:
            table = Table(found, format, limit)
            paths = columns.resolve(table.schema, where=found.where)
            return table.rows(paths), columns.decided(paths)


def _file(
    found: SourceObject, limit: int, normalisation: Sequence[Normalisation]
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
    return SourceRecord(found.name, found.name, content, {})
