"""A hostile supplier's source: one row goes into quarantine, a file ends in words, neither in a
traceback nor in more memory than its limits say."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from govray.data.sources.record import Flaw, SourceRecord
from govray.errors import Malformed
from govray.governance.formats.row_schema import CHAT, RowSchema
from tests.support.source_files import read

GOOD = json.dumps({"text": "good", "messages": [{"role": "user", "content": "good"}]})


@pytest.mark.parametrize(
    ("row", "schema", "says"),
    [
        ('{"text": "x", "license": ' + "[" * 900 + "]" * 900 + "}", None, "a list of lists"),
        (json.dumps({"messages": "[" * 100_000}), CHAT, "nested deeper"),
        (json.dumps({"messages": '[{"role":"user","role":"tool","content":""}]'}), CHAT, "twice"),
    ],
)
def test_a_row_that_no_reader_can_hold_is_one_flaw(
    tmp_path: Path, row: str, schema: RowSchema | None, says: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{row}\n{GOOD}\n")
    flaw, record = read(path, schema=schema)
    assert isinstance(flaw, Flaw)
    assert says in flaw.what
    assert isinstance(record, SourceRecord)
    assert b"good" in record.content


def test_a_message_of_a_table_that_is_not_utf8_is_one_flaw(tmp_path: Path) -> None:
    def text(values: list[bytes]) -> pa.Array:  # as text, which pyarrow does not look at
        return pa.Array.from_buffers(
            pa.string(), len(values), pa.array(values, pa.binary()).buffers()
        )

    struct = pa.StructArray.from_arrays(
        [text([b"user", b"user"]), text([b"\xff", b"good"])], names=["role", "content"]
    )
    messages = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), struct)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"messages": messages}), path)
    flaw, record = read(path, schema=CHAT)
    assert isinstance(flaw, Flaw)
    assert flaw.what == "text of the messages is not UTF-8"
    assert isinstance(record, SourceRecord)
    assert b"good" in record.content


def header(kind: bytes, size: int) -> bytes:
    entry = tarfile.TarInfo("a.txt")
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.USTAR_FORMAT)


SAMPLE = header(tarfile.REGTYPE, 1) + b"x".ljust(512, b"\0") + bytes(1024)


@pytest.mark.parametrize(
    ("kind", "body"),
    [(tarfile.XHDTYPE, b"12 a=bcdefg\n"), (tarfile.GNUTYPE_LONGNAME, b"b.txt\0")],
)
def test_a_chain_of_tar_headers_ends_in_words(tmp_path: Path, kind: bytes, body: bytes) -> None:
    path = tmp_path / "samples.tar"
    extension = header(kind, len(body)) + body.ljust(512, b"\0")
    path.write_bytes(extension + SAMPLE)
    assert len(read(path)) == 1
    path.write_bytes(extension * 3000 + SAMPLE)
    with pytest.raises(Malformed, match="too many headers"):
        read(path)


def test_a_tar_header_takes_no_more_memory_than_a_name_needs(tmp_path: Path) -> None:
    path, size = tmp_path / "samples.tar.gz", 64 << 20
    packed = io.BytesIO()
    with gzip.open(packed, "wb", compresslevel=1) as stream:
        stream.write(header(tarfile.XHDTYPE, size) + bytes(size) + SAMPLE)
    path.write_bytes(packed.getvalue())
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="67,108,864 bytes extends"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
