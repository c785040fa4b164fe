"""Sources in every format that `govray corpus build` reads, and what is read of them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from govray.data.sources import reader
from govray.data.sources.columns import ColumnMapping
from govray.data.sources.objects import Format, find
from govray.data.sources.record import Flaw, SourceRecord
from govray.governance.formats.row_schema import RowSchema

ROWS = [
    {"text": "one", "id": "a", "license": "MIT"},
    {"text": 'two, with "quotes"\nand lines', "id": "b", "license": None},
    {"text": "", "id": "c", "license": "CC-BY-4.0"},
    {"text": "vier äöü \U0001f600", "id": "d", "license": "MIT"},
]
TABLE = pa.Table.from_pylist(ROWS)


def read(
    source: Path,
    *columns: str,
    format: Format | None = None,
    schema: RowSchema | None = None,
    **options: Any,
) -> list[SourceRecord | Flaw]:
    mapping = ColumnMapping.parse(columns, schema.run_kind if schema else "text")
    return list(reader.read(find(str(source), format), mapping, schema=schema, **options))


def records(source: Path, *columns: str, **options: Any) -> list[SourceRecord]:
    """The same of a source without flaws."""
    found = read(source, *columns, **options)
    assert not [each for each in found if isinstance(each, Flaw)], found
    return [each for each in found if isinstance(each, SourceRecord)]


def flaws(source: Path, *columns: str, **options: Any) -> list[tuple[str, str]]:
    """Where each flaw is, and what."""
    found = read(source, *columns, **options)
    return [(each.where, each.what) for each in found if isinstance(each, Flaw)]


def write(path: Path, columns: Mapping[str, Any], *, at_once: int | None = None) -> Path:
    """A table in the format that the suffix names, so many rows of Parquet and Arrow together."""
    table = pa.table(dict(columns))
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path, row_group_size=at_once)
        case ".csv":
            pyarrow.csv.write_csv(table, path)
        case ".jsonl":
            jsonl(path, table.to_pylist())
        case _:
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=at_once)
    return path


def jsonl(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def zipped(path: Path) -> None:
    jsonl(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def zstandard(path: Path) -> None:
    jsonl(path)
    path.write_bytes(pa.compress(path.read_bytes(), codec="zstd", asbytes=True))


def parquet(path: Path, table: pa.Table = TABLE) -> None:
    pq.write_table(table, path, row_group_size=2)


def arrow_file(path: Path) -> None:
    with pa.ipc.new_file(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=3)


def arrow_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=3)


def tar(path: Path, rows: list[dict[str, Any]] = ROWS, *, mode: Any = "w") -> None:
    with tarfile.open(path, mode) as file:
        for i, row in enumerate(rows):
            rest = {name: value for name, value in row.items() if name != "text"}
            for kind, data in (("txt", row["text"].encode()), ("json", json.dumps(rest).encode())):
                entry = tarfile.TarInfo(f"shard/{i:03}.{kind}")
                entry.size = len(data)
                file.addfile(entry, io.BytesIO(data))


FORMATS: dict[str, Callable[[Path], None]] = {
    "rows.jsonl": jsonl,
    "rows.jsonl.gz": zipped,
    "rows.ndjson.zst": zstandard,
    "rows.csv": lambda path: pyarrow.csv.write_csv(TABLE, path),
    "rows.parquet": parquet,
    "rows.arrow": arrow_stream,
    "file.arrow": arrow_file,
    "rows.tar": tar,
    "rows.tgz": lambda path: tar(path, mode="w:gz"),
}
