"""Shards: packed rows in Parquet, and the digests that bind their contents.

A shard has one column, ``tokens: binary``: a row's token ids, little-endian, two bytes each if the
vocabulary fits and four otherwise (``storage_dtype``). In rows of conversations each id has a bit
beside it, and rows of tensors have four bytes in each word (``formats/row_schema.py``). All are
called words. The type is binary rather than ``list<uint16>``, because Parquet would store each id
in four bytes with levels beside it. On 26 MB of Python source, binary with LZ4 wrote 2.4 times as
fast. It read a row group in 0.6 of the time and made smaller files. A row group holds about
``ROW_GROUP_TOKENS`` words: it is what one random row costs to read and to hash.

A shard's own metadata lists the digests of its row groups (``GROUPS``, 64 hex digits each). A
manifest binds the list by one digest, or states it itself.

A row group's digest is the SHA-256 of its decoded content, whatever the width and the compression.
For each row that is the token count, then the tokens, all as little-endian uint32.

Invariant: ``ShardFile.read`` returns verified rows only. A file that does not decode, or decodes to
other rows, is an error that names file and row group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from govray.data.prepared.object_ranges import ObjectRanges
from govray.errors import InfrastructureFailed, Malformed, Refused
from govray.governance.formats.row_schema import RowSchema
from govray.governance.record.prepare_manifest import RowGroup
from govray.storage.bucket import Replaced
from govray.storage.output_file import output_file
from govray.storage.place import Place

ROW_GROUP_TOKENS = 1 << 15
SCHEMA = pa.schema([("tokens", pa.binary())])

GROUPS = b"govray.row_groups"
"""Key of the list in the file's key-value metadata."""

_RESTORE = "Remove the prepared folder and prepare the data again."


@dataclass(frozen=True)
class Rows:
    """Consecutive rows: ``values`` [sum of lengths] token ids, ``lengths`` [rows] token counts."""

    values: npt.NDArray[np.unsignedinteger]
    lengths: npt.NDArray[np.int64]

    @property
    def digest(self) -> str:
        """SHA-256 of the content as the module's docstring defines it, ``sha256:<hex>``."""
        count, longest = self.lengths.size, int(self.lengths.max(initial=0))
        content = np.empty(self.values.size + count, dtype="<u4")
        if self.values.size == count * longest:  # as nearly everywhere: several times as fast
            rows = content.reshape(count, longest + 1)
            rows[:, 0] = longest
            rows[:, 1:] = self.values.reshape(count, longest)
            return "sha256:" + hashlib.sha256(content.data).hexdigest()
        heads = np.cumsum(self.lengths + 1) - (self.lengths + 1)
        body = np.ones(content.size, dtype=bool)
        body[heads] = False
        content[heads] = self.lengths
        content[body] = self.values
        return "sha256:" + hashlib.sha256(content.data).hexdigest()

    @cached_property
    def matrix(self) -> npt.NDArray[np.unsignedinteger]:
        """Token ids ``[rows, longest row]``, zeros beyond a row's length."""
        count, longest = self.lengths.size, int(self.lengths.max(initial=0))
        if self.values.size == count * longest:
            return self.values.reshape(count, longest)
        matrix = np.zeros((count, longest), self.values.dtype)
        matrix[np.arange(longest) < self.lengths[:, None]] = self.values
        return matrix

    def row(self, index: int) -> npt.NDArray[np.unsignedinteger]:
        """Token ids ``[k]`` of one row."""
        stop = int(self.lengths[: index + 1].sum())
        return self.values[stop - int(self.lengths[index]) : stop]


def storage_dtype(vocabulary: int, schema: RowSchema | None = None) -> np.dtype[np.unsignedinteger]:
    """The little-endian dtype in which words are stored.
    ``schema``: of rows that are no packed text: tensors, or ids with a bit of their own."""
    return np.dtype("<u2") if schema is None and vocabulary <= 1 << 16 else np.dtype("<u4")


def write(
    path: Place, stream: npt.NDArray[np.unsignedinteger], context: int
) -> tuple[RowGroup, ...]:
    """`cut` a part stream and write its rows to ``path``, whose folder exists."""
    return write_rows(path, cut(stream, context), context)


def cut(stream: npt.NDArray[np.unsignedinteger], context: int) -> Rows:
    """Cut a part stream into rows of ``context + 1`` tokens.

    Args:
        stream: ``[n]`` token ids in the storage dtype. The last row may be shorter; a last row
            of one token is dropped.
        context: Loss targets of a full row.
    """
    row = context + 1
    lengths = np.full(len(stream) // row, row, dtype=np.int64)
    if (rest := len(stream) % row) >= 2:
        lengths = np.append(lengths, rest)
    return Rows(stream[: int(lengths.sum())], lengths)


def write_rows(path: Place, rows: Rows, context: int) -> tuple[RowGroup, ...]:
    """Write rows that are cut already, each of at most ``context + 1`` tokens; else as `write`."""
    per_group = rows_per_group(context)
    starts = np.cumsum(rows.lengths) - rows.lengths
    groups = []
    with (
        output_file(path) as file,
        pq.ParquetWriter(
            file, SCHEMA, compression="lz4", use_dictionary=False, write_statistics=False
        ) as writer,
    ):
        for first in range(0, len(starts), per_group):
            lengths, start = rows.lengths[first : first + per_group], int(starts[first])
            group = Rows(rows.values[start : start + int(lengths.sum())], lengths)
            writer.write_table(_table(group))
            groups.append(RowGroup(rows=len(lengths), digest=group.digest))
        writer.add_key_value_metadata({GROUPS: _raw(groups).hex()})
    return tuple(groups)


def rows_per_group(context: int) -> int:
    """Rows of every row group but the last."""
    return max(1, ROW_GROUP_TOKENS // (context + 1))


def groups_digest(groups: Sequence[RowGroup]) -> str:
    """One digest of row groups: SHA-256 over theirs, 32 bytes each, ``sha256:<hex>``."""
    return "sha256:" + hashlib.sha256(_raw(groups)).hexdigest()


def _raw(groups: Sequence[RowGroup]) -> bytes:
    return b"".join(bytes.fromhex(each.digest.removeprefix("sha256:")) for each in groups)


class ShardFile:
    """One shard: memory-mapped on a disk; an object's ranges, or all of it, in memory.
    ``data``: all its bytes, if they are there already."""

    def __init__(self, path: Place, *, whole: bool = False, data: pa.Buffer | None = None) -> None:
        self._path = path
        self._listed: dict[str, bytes] = {}
        self._ranges: ObjectRanges | None = None
        try:
            with store_errors(path):
                self._file = self._opened(path, whole, data)
                fits = self._file.schema_arrow == SCHEMA
        except (OSError, pa.ArrowException) as error:
            raise Malformed("not a readable shard", where=str(path), do=_RESTORE) from error
        if not fits:
            raise Malformed("not a shard of packed rows", where=str(path), do=_RESTORE)

    def _opened(self, path: Place, whole: bool, data: pa.Buffer | None) -> pq.ParquetFile:
        if data is not None:
            return pq.ParquetFile(pa.BufferReader(data))
        if isinstance(path, Path):
            return pq.ParquetFile(path, memory_map=True)
        ranges = ObjectRanges(path)
        if whole or ranges.is_held:
            return pq.ParquetFile(pa.BufferReader(ranges.fetch_all()))
        self._ranges = ranges
        return pq.ParquetFile(pa.PythonFile(ranges, mode="r"))

    def span(self, group: int) -> tuple[int, int] | None:
        """Where in an object that is read by ranges a row group lies; None in other files."""
        if self._ranges is None:
            return None
        if group >= self._file.metadata.num_row_groups:
            where = f"{self._path}, row group {group}"
            raise Malformed("the row group does not decode", where=where, do=_RESTORE)
        column = self._file.metadata.row_group(group).column(0)
        start = column.data_page_offset
        if column.dictionary_page_offset:
            start = min(start, column.dictionary_page_offset)
        return start, start + column.total_compressed_size

    def fetch(self, start: int, stop: int) -> None:
        """Fetch what lies between two places of an object, and hold it until `drop`."""
        assert self._ranges is not None
        with store_errors(self._path):
            self._ranges.fetch(start, stop)

    def drop(self, start: int) -> None:
        """Let go of what was fetched from ``start`` on."""
        assert self._ranges is not None
        self._ranges.drop(start)

    def listed(self, digest: str) -> bytes:
        """The digests of the row groups as the file lists them, 32 bytes each."""
        if digest not in self._listed:
            text = (self._file.metadata.metadata or {}).get(GROUPS, b"")
            try:
                found = bytes.fromhex(text.decode("ascii"))
            except ValueError:
                where = str(self._path)
                raise Malformed("it lists no row groups", where=where, do=_RESTORE) from None
            if "sha256:" + hashlib.sha256(found).hexdigest() != digest:
                raise Refused(
                    "its row groups are not those that the manifest was signed for",
                    where=str(self._path),
                    do=_RESTORE,
                )
            self._listed[digest] = found
        return self._listed[digest]

    def verify(self, digest: str, rows: int, dtype: np.dtype[np.unsignedinteger]) -> None:
        """Read every row group and compare it with the list that the file has of them."""
        listed = self.listed(digest)
        found = 0
        for group in range(len(listed) // 32):
            each = "sha256:" + listed[32 * group : 32 * (group + 1)].hex()
            found += self.read(group, each, dtype).lengths.size
        if found != rows:
            raise Refused("it has other rows", where=str(self._path), do=_RESTORE)

    def read(self, group: int, digest: str, dtype: np.dtype[np.unsignedinteger]) -> Rows:
        """The rows of one row group, verified. Raises ``Refused``: they decode to other rows."""
        where = f"{self._path}, row group {group}"
        try:
            with store_errors(self._path):
                table = self._file.read_row_group(group, columns=["tokens"], use_threads=False)
            table.validate(full=True)
            rows = _rows(table, dtype)
        except (OSError, ValueError, IndexError, pa.ArrowException) as error:
            raise Malformed("the row group does not decode", where=where, do=_RESTORE) from error
        if rows.digest != digest:
            raise Refused(
                "the rows are not those that the manifest was signed for", where=where, do=_RESTORE
            )
        return rows


@contextmanager
def store_errors(path: Place) -> Iterator[None]:
    """Turn what a missing file, and a store, raises into errors that name the shard."""
    try:
        yield
    except FileNotFoundError:
        raise Refused("the shard is missing", where=str(path), do=_RESTORE) from None
    except Replaced as error:
        raise ShardReplaced("the shard was replaced", where=str(path), do=_RESTORE) from error
    except OSError as error:
        if isinstance(path, Path):
            raise
        raise InfrastructureFailed(
            f"the shard cannot be fetched: {error.strerror or error}",
            where=str(path),
            do="Check the store, the credentials for it and the network; the run can be resumed.",
        ) from error


class ShardReplaced(Refused):
    """Between two requests an object became another one. It is verified when it is read anew."""


def _table(rows: Rows) -> pa.Table:
    offsets = np.zeros(len(rows.lengths) + 1, dtype=np.int32)
    np.cumsum(rows.lengths * rows.values.itemsize, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows.values)]
    return pa.table([pa.Array.from_buffers(pa.binary(), len(rows.lengths), buffers)], schema=SCHEMA)


def _rows(table: pa.Table, dtype: np.dtype[np.unsignedinteger]) -> Rows:
    """Raises ``ValueError`` for nulls and for bytes that are no whole tokens."""
    column = table.column("tokens").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], type=pa.binary())
    if column.null_count:
        raise ValueError("a row is null")
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[
        column.offset : column.offset + len(column) + 1
    ].astype(np.int64)
    sizes = np.diff(offsets)
    if (sizes % dtype.itemsize).any():
        raise ValueError("a row holds a fraction of a token")
    values = np.frombuffer(data, dtype, int(sizes.sum()) // dtype.itemsize, int(offsets[0]))
    return Rows(values, sizes // dtype.itemsize)
