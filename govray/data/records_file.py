"""Records files: the records of one part, in Parquet beside the part's shard.

Of rows in which some tokens are no loss targets, the file's metadata has each row's targets
(``ROW_TARGETS``, eight hex digits each, little-endian uint32).

Columns ``entry: fixed_size_binary[32]``, ``tokens: int64``, ``split: uint8`` (its place in
``record_columns.SPLITS``), a row for each record in Merkle order. Where records are split
by family, also ``family: fixed_size_binary[32]``, the representative's entry, and
``represented: bool``: whether another record stands for the family in the corpus. The manifest
binds the decoded columns (`RecordColumns.digest`), whatever the compression. None of it goes into a
model folder.

A reader compares with the manifest: `PreparedRecords`, for which `open_records` is the way.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from govray.errors import CouldNotCheck, Malformed, Refused
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.record_columns import RecordColumns, Rows
from govray.governance.formats.statement import Sealed
from govray.governance.record.prepare_manifest import (
    MANIFEST_FILE,
    Manifest,
    Part,
    PreparedCorpus,
    read_manifest,
)
from govray.governance.record.prepared_records import PreparedRecords, ReadPart
from govray.storage.bucket_path import BucketPath
from govray.storage.output_file import output_file
from govray.storage.place import Place
from govray.storage.regular_file import read_regular

SCHEMA = pa.schema([("entry", pa.binary(32)), ("tokens", pa.int64()), ("split", pa.uint8())])
FAMILIES = SCHEMA.append(pa.field("family", pa.binary(32))).append(
    pa.field("represented", pa.bool_())
)
"""Where records are split by family; ``family`` is null for a record that represents its own."""

ROW_TARGETS = b"govray.row_targets"
"""Key of the counts in the file's key-value metadata."""

PREPARED = "prepared"
"""Folder of prepared folders, in the storage that holds the runs."""

_GROUP = 1 << 16
_RESTORE = "Restore the prepared folder, or name the one that the model's run read."
_AGAIN = "Check the store, its credentials and the network, then try again."
# Hashes do not get smaller.
_COMPRESSION = {
    "entry": "NONE",
    "tokens": "ZSTD",
    "split": "ZSTD",
    "family": "NONE",
    "represented": "ZSTD",
}


def write(path: Place, columns: RecordColumns) -> None:
    entries = pa.py_buffer(np.ascontiguousarray(columns.entries))
    table = pa.table(
        [
            pa.Array.from_buffers(pa.binary(32), len(columns), [None, entries]),
            pa.array(columns.tokens, pa.int64()),
            pa.array(columns.splits, pa.uint8()),
        ],
        schema=SCHEMA,
    )
    if columns.families is not None:
        table = table.append_column(FAMILIES.field("family"), _family_column(columns))
        represented = pa.array(~columns.standing, pa.bool_())
        table = table.append_column(FAMILIES.field("represented"), represented)
    if columns.row_targets is not None:
        counts = columns.row_targets.astype("<u4").tobytes()
        table = table.replace_schema_metadata({ROW_TARGETS: counts.hex()})
    with output_file(path) as file:
        pq.write_table(
            table,
            file,
            row_group_size=_GROUP,
            compression={name: _COMPRESSION[name] for name in table.column_names},
            use_dictionary=False,
            write_statistics=False,
        )


def read(path: Place, count: int) -> RecordColumns:
    """The records of one part, as the file has them.
    Raises ``CouldNotCheck``: the file is missing, or its store does not give it."""
    where = str(path)
    try:
        source = pa.BufferReader(path.read_bytes()) if isinstance(path, BucketPath) else path
        with pq.ParquetFile(source) as file:
            if file.schema_arrow not in (SCHEMA, FAMILIES):
                raise Malformed("not a file of records", where=where, do=_RESTORE)
            if file.metadata.num_rows != count:  # before anything is decoded
                raise Malformed(
                    f"it has {file.metadata.num_rows} records, the manifest says {count}",
                    where=where,
                    do=_RESTORE,
                )
            targets = _row_targets(file)
            table = file.read(use_threads=False).combine_chunks()
        table.validate(full=True)
    except FileNotFoundError:
        raise CouldNotCheck("the file of records is missing", where=where, do=_RESTORE) from None
    except OSError as error:
        if isinstance(path, BucketPath):
            raise CouldNotCheck(str(error.strerror), where=where, do=_AGAIN) from error
        raise Malformed("not a readable file of records", where=where, do=_RESTORE) from error
    except (ValueError, pa.ArrowException) as error:
        raise Malformed("not a readable file of records", where=where, do=_RESTORE) from error
    required = [column for column in table.column_names if column != "family"]
    if len(table) != count or any(table.column(each).null_count for each in required):
        raise Malformed("the records do not decode", where=where, do=_RESTORE)
    by_family = len(table.columns) == len(FAMILIES)
    if not count:
        none = RecordColumns.of(())
        return replace(
            none,
            row_targets=targets,
            families=none.entries if by_family else None,
            represented=np.empty(0, np.bool_) if by_family else None,
        )
    entries = _hashes(table.column("entry").chunk(0))
    return RecordColumns(
        entries,
        table.column("tokens").to_numpy(),
        table.column("split").to_numpy(),
        targets,
        _families(entries, table.column("family").chunk(0)) if by_family else None,
        table.column("represented").to_numpy() if by_family else None,
    )


def _family_column(columns: RecordColumns) -> pa.Array:
    """The representatives, null where a record is its own."""
    assert columns.families is not None
    given = (columns.families != columns.entries).any(axis=1)
    every = pa.Array.from_buffers(
        pa.binary(32), len(columns), [None, pa.py_buffer(np.ascontiguousarray(columns.families))]
    )
    return pc.if_else(pa.array(given), every, pa.scalar(None, pa.binary(32)))


def _families(entries: npt.NDArray[np.uint8], column: pa.Array) -> npt.NDArray[np.uint8]:
    """`_family_column` backwards: representatives ``[n, 32]``."""
    given = column.is_valid().to_numpy(zero_copy_only=False)
    found = entries.copy()
    if given.any():
        found[given] = _hashes(column.drop_null())
    return found


def _hashes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """A column without nulls as ``[n, 32]``; shares memory."""
    _, data = column.buffers()
    return np.frombuffer(data, np.uint8, 32 * len(column), 32 * column.offset).reshape(-1, 32)


def _row_targets(file: pq.ParquetFile) -> Rows | None:
    """Raises ``ValueError`` for text that is no list of counts."""
    text = (file.metadata.metadata or {}).get(ROW_TARGETS)
    if text is None:
        return None
    return np.frombuffer(bytes.fromhex(text.decode("ascii")), "<u4").astype(np.int64)


def reader(folder: Place) -> ReadPart:
    """Reads the records of a prepared folder, not yet compared with a manifest.

    What it gives raises as `read`. It raises ``Refused``, too, where the folder's own manifest
    binds other records than are asked for: then it is the folder of another run.
    """
    own = cache(lambda: _manifest_of(folder))

    def part(corpus: PreparedCorpus, number: int) -> RecordColumns:
        found = corpus.parts[number]
        if (held := own()) is not None and not _binds(held.document, corpus.corpus, number, found):
            raise Refused(
                f"the folder holds another manifest, {held.digest}. It binds other records as "
                f"part {number} of {corpus.corpus}",
                where=str(folder / MANIFEST_FILE),
                do="Name the prepared folder of the model's own run, below prepared/ beside its "
                "runs.",
            )
        start, stop = found.records
        return read(folder / found.records_file, stop - start)

    return part


def _manifest_of(folder: Place) -> Sealed[Manifest] | None:
    """The manifest of a prepared folder, for errors: nothing of it is verified."""
    path = folder / MANIFEST_FILE
    try:
        return read_manifest(Envelope.parse(read_regular(path), where=str(path)), where=str(path))
    except (OSError, Refused):
        return None


def _binds(manifest: Manifest, corpus: str, number: int, part: Part) -> bool:
    """Whether the manifest has these records, too, as that part."""
    parts = {prepared.corpus: prepared.parts for prepared in manifest.corpora}.get(corpus, ())
    return any(each.records_digest == part.records_digest for each in parts[number : number + 1])


def find_prepared(run: Place, digest: str) -> Place | None:
    """The prepared folder of a run, or of the search or run that it belongs to, if it is there.

    Args:
        digest: Its manifest's, of the statement: a further signature changes an envelope's bytes.
    """
    for above in run.resolve().parents[:3]:
        if (folder := prepared_in(above / PREPARED, digest)) is not None:
            return folder
    return None


def prepared_in(folder: Place, digest: str) -> Place | None:
    """Of the folders in one, the prepared folder of this manifest."""
    found: list[Any] = [*folder.glob(f"[!.]*/{MANIFEST_FILE}")]
    for path in sorted(found):
        try:
            envelope = Envelope.parse(read_regular(path), where=str(path))
        except (OSError, Refused):
            continue
        if canonical_json.sha256(envelope.payload) == digest:
            prepared: Place = path.parent
            return prepared
    return None


def open_records(folder: Place, manifest: Manifest) -> PreparedRecords:
    """The records of a prepared folder. Reads none yet. ``manifest``: its manifest, verified."""
    return PreparedRecords(manifest, reader(folder))
