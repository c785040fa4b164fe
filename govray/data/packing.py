"""Packing: Ray Data's tasks read the parts of admitted corpora and write shards.

What is small is packed here: Ray Data starts three processes, which takes longer.

Read → hash → tokenize → pack → write, one item for each part. A part that an earlier try finished
is verified instead. What a task found is compared with the credential by the driver
(``admission.py``), before any of it is used.

The mark of a finished part holds the draft's inputs and choice, and what the manifest is to say of
the part. On a store it also holds size and tag of each object. A part counts as finished if its
files are still those. Files of a disk are read and compared by digest, objects by size and tag.
Any other part is packed anew.

Pickle is used between the driver and its own tasks only, never on what lies on storage. Ray itself
unpickles what workers answer, whatever form this module gives it. So a driver that holds the
operator's key is as safe as the cluster that it works on. `govray prepare` starts one of its own on
its machine, unless ``RAY_ADDRESS`` names another, where nobody else's code may run.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray.data

from govray.data import records_file, shard_file
from govray.data.corpus import part_files, read_part, record_name
from govray.data.prepared.ray_failures import ray_failures_named
from govray.data.rows import chat, tensor_record
from govray.data.shard_file import Rows
from govray.data.tokenizer import Tokenizer
from govray.errors import GovrayError, Malformed, UsageError
from govray.governance.formats.record_columns import RESERVE, TRAIN, RecordColumns
from govray.governance.formats.row_schema import MASKED, RowSchema
from govray.governance.policy import record_commitment
from govray.governance.policy.credential import Credential
from govray.governance.record.prepare_manifest import (
    Part,
    Reserve,
    ReserveShard,
    RowTargets,
    reserve_file,
    shard_name,
)
from govray.storage.atomic_file import make_folder
from govray.storage.bucket_path import BucketPath, ObjectStat
from govray.storage.draft_folder import DraftFolder
from govray.storage.place import Place

# Bytes of compressed records that make a task worth its overhead of about 30 ms.
_TASK_BYTES = 1 << 20

HERE_BYTES = 4 << 20
"""Bytes of compressed records that this process works on faster than Ray Data starts."""

Words = npt.NDArray[np.unsignedinteger]

Progress = Callable[[int, int], None]
"""Called with (records done, records in all) as parts are finished."""


@dataclass(frozen=True)
class Item:
    """One part to prepare: the ``part``-th records file of ``corpus``, and its shard.

    ``commitment`` is that of the corpus's credential; the secret stays with the corpus.
    ``families`` says how the part's records are split by family; None splits each by itself.
    """

    corpus: str
    part: int
    source: Place
    file: str
    commitment: str
    families: PartFamilies | None = None


@dataclass(frozen=True)
class PartFamilies:
    """The records of a part that others represent.

    Attributes:
        records: Their places in the part, int64, as bytes.
        representatives: The entry of each one's representative, 32 bytes each.
        standing: Whether each stands for its family in its corpus all the same, a byte each.
    """

    records: bytes = b""
    representatives: bytes = b""
    standing: bytes = b""

    def of(self, columns: RecordColumns) -> RecordColumns:
        """The same records, by family."""
        families, represented = columns.entries.copy(), np.zeros(len(columns), np.bool_)
        places = np.frombuffer(self.records, np.int64)
        families[places] = np.frombuffer(self.representatives, np.uint8).reshape(-1, 32)
        represented[places] = ~np.frombuffer(self.standing, np.bool_)
        return replace(columns, families=families, represented=represented)


@dataclass(frozen=True)
class Packed:
    """What became of a part. Its records and rows are in files; ``part`` says what they are.
    Its range of records begins at 0."""

    part: Part

    @property
    def records(self) -> int:
        return self.part.records[1]


class PartWork(ABC):
    """What is done with each part; travels to Ray Data's tasks."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        """For ``map_batches``: pickled items in, pickled (item, result or error) out."""
        bundles = map(pickle.loads, batch.column("items").to_pylist())  # made by our own driver
        items = [item for bundle in bundles for item in bundle]
        results = [pickle.dumps((item, self.result(item))) for item in items]
        return pa.table({"result": pa.array(results, type=pa.large_binary())})

    def result(self, item: Item) -> Any:
        """What becomes of a part, or the error: Ray would retry what is raised."""
        try:
            return self.work(item)
        except GovrayError as error:
            return error
        except (OSError, pa.ArrowException) as error:
            return self.failed(item, error)

    @abstractmethod
    def work(self, item: Item) -> Any:
        """What becomes of a part."""

    @abstractmethod
    def failed(self, item: Item, error: Exception) -> GovrayError:
        """What is told of a system's error."""


@dataclass(frozen=True)
class Packing(PartWork):
    draft: DraftFolder
    tokenizer: Tokenizer
    context: int
    reserve: Reserve
    schema: RowSchema | None = None

    @property
    def folder(self) -> Place:
        """Where shards and records go."""
        return self.draft.folder

    def work(self, item: Item) -> Packed:
        if found := finished_part(self.draft, item.file, self._dtype):
            return Packed(found)
        packed = self._pack(item)
        mark_finished(self.draft, packed.part)
        return packed

    def failed(self, item: Item, error: Exception) -> GovrayError:
        return cannot_write(error, self.folder / item.file)

    def _pack(self, item: Item) -> Packed:
        """Read → hash → tokenize → pack → write."""
        dtype = self._dtype
        secret = record_commitment.read_secret(item.source.parent, item.commitment)
        entries = bytearray()
        packed: list[bytes] = []
        for content in read_part(item.source):
            entries += record_commitment.entry(hashlib.sha256(content).digest(), secret)
            packed.append(self._words(item, len(packed), content).astype(dtype).tobytes())
        columns = self._columns(item, bytes(entries), packed, dtype.itemsize)
        trained, held = (
            self._rows([packed[i] for i in np.flatnonzero(columns.splits == split)], dtype)
            for split in (TRAIN, RESERVE)
        )
        del packed
        groups = shard_file.write_rows(self.folder / item.file, trained, self._width - 1)
        if self.schema is not None and self.schema.kind == "chat":
            columns = replace(columns, row_targets=chat.row_targets(trained))
        part = Part.of(
            columns,
            source=item.source.name,
            file=item.file,
            context=self.context,
            rows_per_group=shard_file.rows_per_group(self._width - 1),
            groups_digest=shard_file.groups_digest(groups),
            reserve_groups_digest=self._reserve(item, held),
        )
        records_file.write(self.folder / part.records_file, columns)
        return Packed(part)

    @property
    def _dtype(self) -> np.dtype[np.unsignedinteger]:
        return shard_file.storage_dtype(self.tokenizer.vocabulary, self.schema)

    @property
    def _tensors(self) -> bool:
        return self.schema is not None and self.schema.kind == "tensors"

    @property
    def _width(self) -> int:
        """Words of a full row."""
        return self.schema.words if self.schema and self._tensors else self.context + 1

    def _words(self, item: Item, number: int, content: memoryview) -> Words:
        """One record's words, without separator."""
        try:
            if self.schema and self._tensors:
                return tensor_record.row(self.schema, content)
            return self.tokenizer.encode(content)
        except Malformed as error:
            name = record_name(item.source, number)
            where = f"corpus {item.corpus}, {item.source.name}, record {number} ({name})"
            raise Malformed(error.what, where=where, do=error.do) from None

    def _rows(self, packed: Sequence[bytes], dtype: np.dtype[np.unsignedinteger]) -> Rows:
        """The rows of one split's records."""
        if self._tensors:
            values = np.frombuffer(b"".join(packed), dtype)
            return Rows(values, np.full(len(packed), self._width, np.int64))
        masked = MASKED if self.schema else 0  # a separator teaches nothing in conversations
        separator = np.array([self.tokenizer.separator | masked], dtype=dtype).tobytes()
        stream = b"".join(each + separator for each in packed)
        return shard_file.cut(np.frombuffer(stream, dtype), self.context)

    def _columns(
        self, item: Item, entries: bytes, packed: Sequence[bytes], width: int
    ) -> RecordColumns:
        """The part's records, split. One of tensors counts as one token."""
        each = np.frombuffer(entries, np.uint8).reshape(-1, 32)
        per_token = width * (self._width if self._tensors else 1)
        tokens = np.fromiter((len(data) // per_token for data in packed), np.int64, len(packed))
        columns = RecordColumns(each, tokens, np.zeros(len(packed), np.uint8))
        if item.families:
            columns = item.families.of(columns)
        return replace(columns, splits=self.reserve.splits(columns.drawn_by, tokens))

    def _reserve(self, item: Item, held: Rows) -> str:
        """Writes the shard of the reserve if it has rows; the digest of its row groups."""
        if not held.lengths.size:
            return shard_file.groups_digest(())
        file = self.folder / reserve_file(item.file)
        return shard_file.groups_digest(shard_file.write_rows(file, held, self._width - 1))


def items_of(corpus: Place, credential: Credential, folder: Place) -> Iterator[Item]:
    """The parts of a corpus. Makes the folder of its class below ``folder``."""
    make_folder((folder / shard_name(credential, 0)).parent)
    for k, source in enumerate(part_files(corpus)):
        file = shard_name(credential, k)
        yield Item(credential.corpus, k, source.resolve(), file, credential.records.commitment)


def pack_all(
    packing: Packing, items: Sequence[Item], total: int, progress: Progress
) -> dict[Item, Packed]:
    """Run the packing. Raises as `run_work`."""
    packed: dict[Item, Packed] = {}
    done = 0
    progress(done, total)

    def on_part(item: Item, result: Packed) -> None:
        nonlocal done
        packed[item] = result
        done += result.records
        progress(done, total)

    run_work(packing, items, on_part)
    return packed


def run_work(work: PartWork, items: Sequence[Item], on_part: Callable[[Item, Any], None]) -> None:
    """Do a work on parts, with Ray Data if it is large; ``on_part`` gets each result."""
    sizes = _sizes(items)
    here = sum(sizes.values()) <= HERE_BYTES
    errors: dict[Item, GovrayError] = {}
    for item, result in _results_here(work, items) if here else _results(work, sizes):
        if isinstance(result, GovrayError):
            errors[item] = result
        else:
            on_part(item, result)
    for item in items:
        if item in errors:
            raise errors[item]


def _results_here(work: PartWork, items: Sequence[Item]) -> Iterator[tuple[Item, Any]]:
    return ((item, work.result(item)) for item in items)


def _results(work: PartWork, sizes: Mapping[Item, int]) -> Iterator[tuple[Item, Any]]:
    bundles = _bundles(sizes)
    dataset = ray.data.from_items(
        [{"items": pickle.dumps(bundle)} for bundle in bundles], override_num_blocks=len(bundles)
    ).map_batches(work, batch_size=None, batch_format="pyarrow", num_cpus=1)
    dataset.context.enable_progress_bars = False
    dataset.context.print_on_execution_start = False
    with ray_failures_named("preparing data"):
        for row in dataset.iter_rows():
            yield pickle.loads(row["result"])  # noqa: S301  made by our own task


def _bundles(sizes: Mapping[Item, int]) -> list[list[Item]]:
    """The work of each task: large parts first, so that no long one is left for the end, and
    small ones together."""
    bundles: list[list[Item]] = []
    room = 0
    for item, size in sorted(sizes.items(), key=lambda entry: -entry[1]):
        if room <= 0:
            bundles.append([])
            room = _TASK_BYTES
        bundles[-1].append(item)
        room -= size
    return bundles


def _sizes(items: Sequence[Item]) -> dict[Item, int]:
    """The bytes of each source; below a bucket from a listing, not from a request for each."""
    listed: dict[Place, dict[str, ObjectStat]] = {
        folder: folder.walk_files()
        for folder in {item.source.parent for item in items}
        if isinstance(folder, BucketPath)
    }
    found = {}
    for item in items:
        status = listed.get(item.source.parent, {}).get(item.source.name) or item.source.stat()
        found[item] = status.st_size
    return found


def cannot_write(error: Exception, path: Place) -> UsageError:
    """The error that says which file can't be written, and why."""
    return UsageError(
        f"cannot write the prepared data ({getattr(error, 'strerror', None) or error})",
        where=str(getattr(error, "filename", None) or path),
        do="Check the folder, its permissions and the disk."
        if isinstance(path, Path)
        else "Check the bucket, the right to write there and the network.",
    )


Dtype: TypeAlias = np.dtype[np.unsignedinteger]


def mark_finished(draft: DraftFolder, part: Part) -> None:
    """Say that a part's files are whole."""
    made = {
        "inputs": draft.inputs,
        "choice": draft.choice,
        "part": part.to_json(),
        "objects": _objects(draft, part),
    }
    draft.mark(_name(part.file), json.dumps(made).encode())


def finished_part(draft: DraftFolder, file: str, dtype: Dtype) -> Part | None:
    """The part whose shard is ``file``, if it is finished; words are stored as ``dtype``."""
    if (data := draft.marked(_name(file))) is None:
        return None
    try:
        made = json.loads(data)
        if (made["inputs"], made["choice"]) != (draft.inputs, draft.choice):
            return None  # a task of an earlier draft, which was discarded, outlived it
        part = Part.from_json(made["part"], where=file)
        if isinstance(draft.folder, BucketPath):
            return part if made["objects"] == _objects(draft, part) else None
        _verify(draft, part, dtype)
    except (GovrayError, FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return part


def _name(file: str) -> str:
    return file.replace("/", "-")


def _files(part: Part) -> list[str]:
    reserve = [part.reserve.file] if part.reserve else []
    return [part.file, part.records_file, *reserve]


def _objects(draft: DraftFolder, part: Part) -> dict[str, list[int | str | None]]:
    """File to size and tag, on a store."""
    found: dict[str, list[int | str | None]] = {}
    if isinstance(draft.folder, BucketPath):
        for file in _files(part):
            status = (draft.folder / file).stat()
            found[file] = [status.st_size, status.tag.e_tag]
    return found


def _verify(draft: DraftFolder, part: Part, dtype: Dtype) -> None:
    """Read a part's files. Raises ``GovrayError`` if they are not as ``part`` says."""
    columns = records_file.read(draft.folder / part.records_file, part.records[1])
    if columns.digest != part.records_digest:
        raise ValueError("other records")
    counts = columns.row_targets
    if (None if counts is None else RowTargets.of(counts)) != part.targets:
        raise ValueError("other loss targets")
    shards: Sequence[Part | ReserveShard | None] = (part, part.reserve)
    for shard in shards:
        if shard is not None:
            file = shard_file.ShardFile(draft.folder / shard.file)
            file.verify(shard.groups_digest, shard.rows, dtype)
