"""One source in every format that `govray corpus build` reads."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

ROWS = [
    {"text": "one", "id": "a", "license": "MIT"},
    {"text": 'two, with "quotes"\nand lines', "id": "b", "license": None},
    {"text": "", "id": "c", "license": "CC-BY-4.0"},
    {"text": "vier äöü \U0001f600", "id": "d", "license": "MIT"},
]
TABLE = pa.Table.from_pylist(ROWS)


def jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


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
