"""Parquet and Arrow, decoded: the schema of a table, and its rows a few at a time.

`table_process` runs this in a process of bounded memory, since a small file may decode to anything.
Files are read, not mapped: a mapped file that another process cuts short kills the reader.

An Arrow stream that is cut between two batches looks complete to pyarrow, so its end mark is
demanded here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from govray.data.sources.objects import Format, SourceObject

_BUFFER = 1 << 20  # bytes read ahead of each column
_STREAM_END = bytes.fromhex("ffffffff00000000")


def schema_of(found: SourceObject, format: Format) -> pa.Schema:
    """The columns.

    Raises:
        Exception: pyarrow's or the storage's; the table cannot be read, or is cut short.
    """
    with found.open() as file:
        if format == "parquet":
            return pq.read_schema(file)
        _check_end(file)
        return _arrow(file).schema


def batches(
    found: SourceObject, format: Format, columns: Sequence[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """All rows, at most ``rows`` in a batch.

    Raises:
        Exception: As `schema_of`; or there is not the memory for a batch.
    """
    if format == "parquet":
        with (
            found.open() as file,
            pq.ParquetFile(
                file, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
            ) as table,
        ):
            yield from table.iter_batches(batch_size=rows, columns=[*columns], use_threads=False)
        return
    with found.open() as file, _arrow(file) as reader:
        streamed = isinstance(reader, pa.RecordBatchStreamReader)
        stored = (
            reader if streamed else (reader.get_batch(i) for i in range(reader.num_record_batches))
        )
        for batch in stored:
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def _arrow(file: pa.NativeFile) -> Any:
    magic = file.read(6)
    file.seek(0)
    return pa.ipc.open_file(file) if magic == b"ARROW1" else pa.ipc.open_stream(file)


def _check_end(file: pa.NativeFile) -> None:
    size = file.size()
    magic = file.read(6)
    file.seek(max(0, size - len(_STREAM_END)))
    if magic != b"ARROW1" and file.read() != _STREAM_END:
        raise pa.ArrowInvalid("the stream has no end mark")
    file.seek(0)
