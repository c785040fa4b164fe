"""The rows of every step, read from shards in the order of the batch plan.

One reader has two sources that give the same bytes. ``StepReader.windows`` reads memory-mapped
shards in this process. ``StepReader.load`` does the same inside a Ray Data task (``map_batches``),
and ``step_rows`` decodes its output::

    reader = StepReader(folder, manifest, plan, rank=rank, world=world)
    for window in reader.windows(start):                        # this process
        for rows in window: ...

    dataset = ray.data.from_items(plan_items(plan, start)).map_batches(
        reader.load, batch_format="pyarrow", batch_size=16)     # a cluster; preserve_order
    for batch in dataset.iterator().iter_batches(batch_size=1, batch_format="pyarrow"):
        for rows in step_rows(batch): ...

Invariants

* **The plan decides, the reader computes.** Which rows a step reads is a function of plan, step,
  rank and world size; an item names a step and nothing else. The ranks' rows concatenate to the
  plan's, at any world size.
* **No row is returned unverified.** A row group's digest is checked whenever it is decoded; what
  is kept in memory is what was checked.
* **A row group is decoded once for all steps that are read together**, and kept for those that
  follow while there is room. One row alone would cost the decoding and hashing of its whole group.
  Windows begin with one step and double, so that the first step of a run, resumed or not, waits
  for itself.
* **A step that cannot be read is still a step.** Its ``StepRows`` carries the error, so that the
  rank can tell the others.

The caller has verified the manifest's signature.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from govray.data.group_cache import GroupCache, GroupKey
from govray.data.prepared.object_ranges import PIECE, submit
from govray.data.shard_file import Rows, ShardFile, ShardReplaced, storage_dtype
from govray.errors import GovrayError, Refused
from govray.governance.record import plan_rows
from govray.governance.record.batch_plan import BatchPlan, rank_slice
from govray.governance.record.prepare_manifest import (
    MANIFEST_FILE,
    Manifest,
    Part,
    PreparedCorpus,
    ReserveShard,
)
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place, place
from govray.storage.storage_url import is_url

Tokens = npt.NDArray[np.uint32]
WINDOW_TOKENS = 1 << 22
"""About how many tokens a rank reads in one window: 16 MB."""
WINDOW_STEPS = 1024
"""Steps in one window at most."""

CACHED_BYTES = 1 << 27
"""Decoded row groups that a process keeps: those of five to ten windows of a plan's order."""

WHOLE_BYTES = 1 << 28
"""Bytes of token ids up to which a store's shards are fetched whole, and kept in memory."""

AHEAD_BYTES = 1 << 26
"""Bytes that are being fetched, or wait to be decoded, at most."""

GAP = 1 << 18
"""Bytes between two row groups that are fetched with them: a request costs as much as those."""

# A shard's footer is about 64 kB in memory.
_CACHED_SHARDS = 128

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("row_tokens", pa.int64()),
        ("tokens", pa.large_binary()),
        ("lengths", pa.list_(pa.int64())),
        ("streams", pa.list_(pa.string())),
        ("positions", pa.list_(pa.int64())),
        ("corpora", pa.list_(pa.string())),
        ("error", pa.string()),
        ("refused", pa.bool_()),
    ]
)
"""How ``StepRows`` travel: one row a step; ``tokens`` are little-endian uint32."""


@dataclass(frozen=True)
class StepRows:
    """One rank's rows of one step, in the order of streams (by id), then positions.

    Attributes:
        tokens: ``[rows, T+1]`` words, of packed text token ids; zeros beyond a row's length.
        lengths: ``[rows]`` words of each row, at least 2. ``worker/planned_batch.py`` says how many
            loss targets they make.
        streams: Stream id of each row.
        positions: ``[rows]`` place of each row within its stream's quota of this step, over all
            ranks. Tombstones keep their place.
        corpora: Corpus of each row.
        error: Why the step could not be read; then there are no rows.
        refused: Whether that is the data's fault; a store that fails may answer another time.
    """

    step: int
    tokens: Tokens
    lengths: npt.NDArray[np.int64]
    streams: tuple[str, ...]
    positions: npt.NDArray[np.int64]
    corpora: tuple[str, ...]
    error: str | None = None
    refused: bool = False


class ArrowRows:
    """Random access to the packed rows of a prepared folder. Picklable, and small when pickled.

    Args:
        folder: The prepared folder; a path on this machine, or one below a bucket.
        manifest: Its prepare manifest, verified.
        reserve: The rows of the reserve instead, which no plan reads.
    """

    def __init__(self, folder: Place, manifest: Manifest, *, reserve: bool = False) -> None:
        self._folder = folder
        self._dtype = storage_dtype(manifest.tokenizer.vocabulary, manifest.rows)
        self._parts: list[_PartIndex] = []
        self._corpora: dict[str, _CorpusIndex] = {}
        groups = 0
        for corpus in manifest.corpora:
            parts = _index(corpus, reserve)
            self._corpora[corpus.corpus] = _corpus_index(parts, len(self._parts), groups)
            self._parts += parts
            groups += sum(len(part.group_stops) for part in parts)
        self._ends = tuple(accumulate(len(part.group_stops) for part in self._parts))
        rows = sum(part.stop - part.start for part in self._parts)
        words = rows * manifest.width
        self._whole = words * self._dtype.itemsize <= WHOLE_BYTES

    @property
    def whole_objects(self) -> list[str]:
        """The shards that are fetched whole, on a store."""
        if not (self._whole and isinstance(self._folder, BucketPath)):
            return []
        return [str(self._folder / part.file) for part in self._parts]

    def rows_in(self, corpus: str) -> int:
        """Packed rows of a corpus; 0 if the folder does not hold it."""
        index = self._corpora.get(corpus)
        return int(index.stops[-1]) if index is not None and index.stops.size else 0

    def row(self, corpus: str, row: int) -> npt.NDArray[np.unsignedinteger]:
        """Token ids ``[k]`` of a row, 2 <= k <= T+1, in the storage dtype.
        Raises ``Refused``: the rows are not those of the manifest, or the shard is missing."""
        [group], [place] = self.locate(corpus, np.array([row]))
        return self.group(int(group)).row(int(place))

    def locate(
        self, corpus: str, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The row group that holds each of ``[rows]``, and the row's place in it.
        Row groups are numbered through all corpora and their parts."""
        outside = (rows < 0) | (rows >= self.rows_in(corpus))
        if outside.any():
            odd = int(rows[outside][0])
            raise ValueError(f"row {odd} of {corpus} is outside [0, {self.rows_in(corpus)})")
        index = self._corpora[corpus]
        parts = np.searchsorted(index.stops, rows, side="right")
        offsets = rows - index.starts[parts]
        sizes = index.rows_per_group[parts]
        groups, places = np.divmod(offsets, np.maximum(sizes, 1))
        for part in np.unique(parts[sizes == 0]).tolist():
            here = parts == part
            stops = np.array(self._parts[index.first_part + part].group_stops, np.int64)
            found = np.searchsorted(stops, offsets[here], side="right")
            groups[here], places[here] = found, offsets[here] - np.append(0, stops)[found]
        return index.first_groups[parts] + groups, places

    def group(self, group: int) -> Rows:
        """The rows of a row group, by its number, verified."""
        [(_, rows)] = self.groups([group])
        if isinstance(rows, GovrayError):
            raise rows
        return rows

    def groups(self, groups: Sequence[int]) -> Iterator[tuple[int, Rows | GovrayError]]:
        """The rows of each row group, verified, or what `group` raises, in any order."""
        keys = self._keys(groups)
        # What is kept comes first: what is decoded may take its place.
        missing = [group for group in groups if keys[group] not in DECODED]
        for group in set(groups) - set(missing):
            if (rows := DECODED.get(keys[group])) is not None:
                yield group, rows
            else:  # another thread's have taken its place
                missing.append(group)
        if isinstance(self._folder, BucketPath):
            yield from self._fetched(missing, keys)
        else:
            yield from ((group, self._tried(group, keys[group])) for group in missing)

    def _tried(self, group: int, key: GroupKey) -> Rows | GovrayError:
        try:
            try:
                rows = self._decoded(group, key)
            except ShardReplaced:  # as a file of a disk that was written anew: verify that one
                _WHOLE.pop(key.path, None)
                _ranged_object.cache_clear()
                rows = self._decoded(group, key)
        except GovrayError as error:
            return error
        DECODED.keep(key, rows)
        return rows

    def _fetched(
        self, groups: Sequence[int], keys: Mapping[int, GroupKey]
    ) -> Iterator[tuple[int, Rows | GovrayError]]:
        """The same from a store: requests for what follows run while this thread decodes."""
        paths = dict.fromkeys(keys[group].path for group in groups)
        opening = {path: submit(_object, path, self._whole, waits=True) for path in paths}
        waiting = deque(self._runs(groups, keys, opening))
        running: deque[tuple[_Run, Future[None] | None]] = deque()
        held = 0
        while waiting or running:
            while waiting and (not running or held + waiting[0].size <= AHEAD_BYTES):
                run = waiting.popleft()
                held += run.size
                fetched = submit(run.shard.fetch, run.start, run.stop) if run.shard else None
                running.append((run, fetched))
            run, fetched = running.popleft()
            if fetched is not None:
                wait([fetched])  # what it raises, reading it again does
            for group in run.groups:
                yield group, self._tried(group, keys[group])
            if run.shard is not None:
                run.shard.drop(run.start)
            held -= run.size

    def _runs(
        self,
        groups: Sequence[int],
        keys: Mapping[int, GroupKey],
        opening: Mapping[str, Future[ShardFile]],
    ) -> list[_Run]:
        """Row groups that one request fetches each: those that lie near each other."""
        runs: list[_Run] = []
        for group in sorted(groups):
            key = keys[group]
            try:
                shard = opening[key.path].result()
                span = shard.span(key.group)
            except GovrayError:  # reading it says so
                span = None
            if span is None:
                runs.append(_Run(None, 0, 0, [group]))
                continue
            last = runs[-1] if runs else None
            gap = span[0] - last.stop if last and last.shard is shard else -1
            if last and 0 <= gap <= GAP and last.size < PIECE:
                last.stop = span[1]
                last.groups.append(group)
            else:
                runs.append(_Run(shard, *span, [group]))
        return runs

    def _decoded(self, group: int, key: GroupKey) -> Rows:
        if isinstance(self._folder, BucketPath):
            shard = _object(key.path, self._whole)
        else:
            shard = _shard(key.path, key.stamp)
        part = self._parts[bisect_right(self._ends, group)]
        digests = part.digests if part.bound is None else shard.listed(part.bound)
        digest = "sha256:" + digests[32 * key.group : 32 * (key.group + 1)].hex()
        return shard.read(key.group, digest, self._dtype)

    def _keys(self, groups: Sequence[int]) -> dict[int, GroupKey]:
        """The key of each row group; each file is looked at once."""
        files: dict[int, tuple[str, int]] = {}
        keys: dict[int, GroupKey] = {}
        for group in groups:
            number = bisect_right(self._ends, group)
            part = self._parts[number]
            if number not in files:
                path = str(self._folder / part.file)
                try:
                    # Of an object, each request says which version it means.
                    stamp = 0 if is_url(path) else os.stat(path).st_mtime_ns
                    files[number] = path, stamp
                except OSError:
                    files[number] = path, 0  # missing: opening it says so
            place = group - (self._ends[number - 1] if number else 0)
            digest = part.bound or part.digests[32 * place : 32 * (place + 1)].hex()
            keys[group] = GroupKey(*files[number], place, digest, self._dtype.str)
        return keys


class StepReader:
    """One rank's rows, step by step. Picklable.

    Args:
        folder: The prepared folder; a path on every machine that reads, or one below a bucket.
        manifest: Its prepare manifest, verified.
        rank, world: Whose slices; ``0 <= rank < world``.

    Raises:
        Refused: the plan was made for other prepared data. Names the corpus.
    """

    def __init__(
        self, folder: Place, manifest: Manifest, plan: BatchPlan, *, rank: int, world: int
    ) -> None:
        self._folder = folder
        self._rows = ArrowRows(folder, manifest)
        self._rank = rank
        self._streams = [stream.id for stream in plan.streams]
        self._corpora = plan.corpora
        self._width = manifest.width
        self.plan = plan
        self.world = world
        for corpus in (c for stream in plan.streams for c in stream.corpora):
            if plan.context != manifest.context or corpus.rows != self._rows.rows_in(corpus.corpus):
                raise Refused(
                    "the batch plan was made for other prepared data",
                    where=corpus.corpus,
                    do="Plan again from this manifest.",
                )

    @property
    def whole_objects(self) -> list[str]:
        """As `ArrowRows.whole_objects`."""
        return self._rows.whole_objects

    @property
    def readable_here(self) -> bool:
        """Whether this process can read the prepared folder.
        A missing shard is reported when it is read. So is a store that does not answer."""
        if isinstance(self._folder, BucketPath):
            try:
                (self._folder / MANIFEST_FILE).stat()
            except PermissionError:
                return False
            except OSError:
                return True
            return True
        return os.access(self._folder, os.R_OK | os.X_OK)

    def steps(self, start: int = 0) -> Iterator[StepRows]:
        """Every remaining step from ``start`` on, in order."""
        for window in self.windows(start):
            yield from window

    def windows(self, start: int = 0, stop: int | None = None) -> Iterator[list[StepRows]]:
        """The same, in runs of steps that are read together.
        ``stop``: the first step that is left out; None for the plan's end."""
        size, stop = 1, self.plan.max_steps if stop is None else stop
        while start < stop:
            end, tokens = start, 0
            while end < min(start + size, stop) and tokens < WINDOW_TOKENS:
                rows = sum(len(self._mine(each)) for each in self.plan.positions(end).values())
                tokens += rows * self._width
                end += 1
            yield self._read(range(start, end))
            start, size = end, min(2 * size, WINDOW_STEPS)

    def read(self, step: int) -> StepRows:
        """The rows of one step; an unreadable row makes ``error``, not an exception."""
        [rows] = self._read([step])
        return rows

    def _read(self, steps: Sequence[int]) -> list[StepRows]:
        """The rows of some steps, each row group decoded once."""
        planned = self._planned(steps)
        total = planned.groups.size
        tokens = np.zeros((total, self._width), dtype=np.uint32)
        lengths = np.zeros(total, dtype=np.int64)
        errors: dict[int, GovrayError] = {}
        order = np.argsort(planned.groups, kind="stable")
        wanted, firsts = np.unique(planned.groups[order], return_index=True)
        targets_of = dict(zip(wanted.tolist(), np.split(order, firsts[1:]), strict=False))
        for group, rows in self._rows.groups(wanted.tolist()):
            if isinstance(rows, GovrayError):
                errors[group] = rows
                continue
            targets = targets_of[group]
            places = planned.places[targets]
            lengths[targets] = rows.lengths[places]
            tokens[targets, : rows.matrix.shape[1]] = rows.matrix[places]
        failed = np.isin(planned.groups, list(errors))
        found = []
        for step, (start, stop) in zip(steps, pairwise(planned.bounds), strict=True):
            why: GovrayError | None = None
            if errors and failed[start:stop].any():
                # A step has the error of its first bad row, whichever steps are read with it.
                first = start + int(np.argmax(failed[start:stop]))
                why = errors[int(planned.groups[first])]
                stop = start
            found.append(
                StepRows(
                    step=step,
                    tokens=tokens[start:stop],
                    lengths=lengths[start:stop],
                    streams=tuple(planned.streams[start:stop]),
                    positions=planned.positions[start:stop],
                    corpora=tuple(planned.corpora[start:stop]),
                    error=None if why is None else str(why),
                    refused=isinstance(why, Refused),
                )
            )
        return found

    def _planned(self, steps: Sequence[int]) -> _Planned:
        """What this rank reads at some steps."""
        ranges: dict[str, list[tuple[int, int, int, int]]] = {}
        for number, step in enumerate(steps):
            for stream, positions in self.plan.positions(step).items():
                mine = self._mine(positions)
                ranges.setdefault(stream, []).append(
                    (number, mine.start, mine.stop, positions.start)
                )
        pieces = [self._planned_of(stream, each) for stream, each in sorted(ranges.items())]
        columns = np.concatenate([np.empty((6, 0), np.int64), *pieces], axis=1)
        # Within a step, streams stay in their order.
        columns = columns[:, np.argsort(columns[0], kind="stable")]
        owners, streams, corpora, positions, groups, places = columns
        return _Planned(
            bounds=np.searchsorted(owners, np.arange(len(steps) + 1)).tolist(),
            streams=[self._streams[number] for number in streams.tolist()],
            corpora=[self._corpora[number] for number in corpora.tolist()],
            positions=positions,
            groups=groups,
            places=places,
        )

    def _mine(self, positions: range) -> range:
        return rank_slice(positions, self._rank, self.world)

    def _planned_of(
        self, stream: str, ranges: Sequence[tuple[int, int, int, int]]
    ) -> npt.NDArray[np.int64]:
        """What one stream brings, tombstones left out.

        Args:
            ranges: Number of a step, half-open range of this rank's positions at it, and the first
                position of all ranks.

        Returns:
            ``[6, rows]``: number of the step, number of the stream, number of the corpus, and
            `_Planned`'s last three.
        """
        numbers, starts, stops, firsts = np.array(ranges, np.int64).T
        where = plan_rows.range_positions(starts, stops)
        members, rows = plan_rows.corpus_rows(self.plan, stream, where)
        found = np.empty((6, rows.size), np.int64)
        found[0] = np.repeat(numbers, stops - starts)
        found[1] = self._streams.index(stream)
        found[3] = where.astype(np.int64) - np.repeat(firsts, stops - starts)
        kept = np.ones(rows.size, dtype=bool)
        for member in np.unique(members).tolist():
            here = members == member
            corpus = self.plan.stream(stream).corpora[member].corpus
            if corpus in self.plan.excluded:
                kept[here] = False
            else:
                found[2, here] = self._corpora.index(corpus)
                found[4, here], found[5, here] = self._rows.locate(corpus, rows[here])
        return found[:, kept]

    def load(self, items: pa.Table) -> pa.Table:
        """For ``map_batches``: ``plan_items`` rows in, one encoded ``StepRows`` each out."""
        found = self._read(items.column("step").to_pylist())
        return pa.Table.from_pylist(
            [
                {
                    "step": rows.step,
                    "row_tokens": rows.tokens.shape[1],
                    "tokens": rows.tokens.astype("<u4").tobytes(),
                    "lengths": rows.lengths,
                    "streams": rows.streams,
                    "positions": rows.positions,
                    "corpora": rows.corpora,
                    "error": rows.error,
                    "refused": rows.refused,
                }
                for rows in found
            ],
            schema=SCHEMA,
        )


def plan_items(plan: BatchPlan, start: int = 0) -> list[dict[str, int]]:
    """What ``StepReader.load`` reads: one item for each step from ``start`` on."""
    return [{"step": step} for step in range(start, plan.max_steps)]


def step_rows(batch: pa.Table) -> Iterator[StepRows]:
    """Decode what ``StepReader.load`` encoded."""
    for row in batch.select(SCHEMA.names).to_pylist():
        tokens = np.frombuffer(row["tokens"], dtype="<u4").astype(np.uint32)
        yield StepRows(
            step=row["step"],
            tokens=tokens.reshape(len(row["lengths"]), row["row_tokens"]),
            lengths=np.array(row["lengths"], dtype=np.int64),
            streams=tuple(row["streams"]),
            positions=np.array(row["positions"], dtype=np.int64),
            corpora=tuple(row["corpora"]),
            error=row["error"],
            refused=row["refused"],
        )


def planned_rows(
    plan: BatchPlan, stream_id: str, positions: range
) -> Iterator[tuple[int, str, int]]:
    """``BatchPlan.read``, with the permutation computed for all positions at once.
    Yields (position, corpus, row in corpus); tombstones are left out."""
    corpora = [each.corpus for each in plan.stream(stream_id).corpora]
    where = np.arange(positions.start, positions.stop, dtype=np.uint64)
    members, rows = plan_rows.corpus_rows(plan, stream_id, where)
    for position, member, row in zip(positions, members, rows.tolist(), strict=True):
        if corpora[member] not in plan.excluded:
            yield position, corpora[member], row


@dataclass(frozen=True)
class _PartIndex:
    """Where a part's rows lie: rows ``[start, stop)`` of the corpus.

    ``group_stops[g]`` is the part's row just past row group g, ``digests`` their raw digests. If
    the shard lists those itself, ``bound`` is the digest of the list.
    """

    file: str
    start: int
    stop: int
    group_stops: Sequence[int]
    digests: bytes
    bound: str | None = None


@dataclass
class _Run:
    """Row groups that one request fetches: bytes ``[start, stop)`` of a shard.
    Without a shard there is nothing to fetch: it is in memory, or cannot be opened."""

    shard: ShardFile | None
    start: int
    stop: int
    groups: list[int]

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class _CorpusIndex:
    """Where a corpus's parts lie, one entry of each array for each of them.

    Attributes:
        first_part: Number of its first part, of all corpora's.
        starts, stops: The corpus's rows that the part has.
        first_groups: Number of the part's first row group, of all corpora's.
        rows_per_group: Of each row group but the last; 0 if the manifest lists row groups, as it
            does of canaries.
    """

    first_part: int
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    first_groups: npt.NDArray[np.int64]
    rows_per_group: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Planned:
    """What a rank reads at some steps, one entry for each row, in the order of steps.

    Attributes:
        bounds: Where each step's rows begin, and where the last one's end.
        positions: ``[rows]``, as in `StepRows`.
        groups: ``[rows]``, the row group's number.
        places: ``[rows]``, the row's place in its row group.
    """

    bounds: list[int]
    streams: list[str]
    corpora: list[str]
    positions: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]


def _index(corpus: PreparedCorpus, reserve: bool) -> tuple[_PartIndex, ...]:
    parts: list[_PartIndex] = []
    start = 0
    shards = [part.reserve if reserve else part for part in corpus.parts]
    planted = [] if reserve else [corpus.planted]  # their rows come behind the corpus's own
    for shard in (each for each in (*shards, *planted) if each is not None):
        if isinstance(shard, Part | ReserveShard):
            # The last one may stop behind the shard's rows, in which no row is.
            per_group = shard.rows_per_group
            stops = range(per_group, shard.rows + per_group, per_group)
            bound = shard.groups_digest
            parts.append(_PartIndex(shard.file, start, start + shard.rows, stops, b"", bound))
            start += shard.rows
            continue
        groups = shard.row_groups
        parts.append(
            _PartIndex(
                file=shard.file,
                start=start,
                stop=start + shard.rows,
                group_stops=tuple(accumulate(g.rows for g in groups)),
                digests=b"".join(bytes.fromhex(g.digest.removeprefix("sha256:")) for g in groups),
            )
        )
        start += shard.rows
    return tuple(parts)


def _corpus_index(parts: Sequence[_PartIndex], first_part: int, first_group: int) -> _CorpusIndex:
    stops = [part.group_stops for part in parts]
    counts = np.array([len(each) for each in stops], np.int64)
    return _CorpusIndex(
        first_part=first_part,
        starts=np.array([part.start for part in parts], np.int64),
        stops=np.array([part.stop for part in parts], np.int64),
        first_groups=first_group + np.cumsum(counts) - counts,
        rows_per_group=np.array(
            [each.step if isinstance(each, range) else 0 for each in stops], np.int64
        ),
    )


# The process's, since Ray Data unpickles the reader for every task.

DECODED = GroupCache(CACHED_BYTES)
"""The verified row groups that this process keeps."""


def _object(path: str, whole: bool) -> ShardFile:
    """An open shard of a store."""
    return _whole_object(path) if whole else _ranged_object(path)


def _whole_object(path: str) -> ShardFile:
    if (found := _WHOLE.get(path)) is None:
        found = _WHOLE[path] = ShardFile(place(path), whole=True)
    return found


_WHOLE: dict[str, ShardFile] = {}


def is_open(path: str) -> bool:
    """Whether this process holds the whole shard of a store."""
    return path in _WHOLE


def open_bytes(path: str, data: pa.Buffer) -> None:
    """Read a store's shard from these bytes from now on, verified as all are.
    Bytes that are no shard are left out: then it is fetched."""
    with suppress(GovrayError):
        _WHOLE[path] = ShardFile(place(path), data=data)


def forget() -> None:
    """Let go of all that this process has fetched and decoded."""
    DECODED.clear()
    _WHOLE.clear()
    _ranged_object.cache_clear()


@lru_cache(maxsize=_CACHED_SHARDS)
def _ranged_object(path: str) -> ShardFile:
    return ShardFile(place(path))


@lru_cache(maxsize=_CACHED_SHARDS)
def _shard(path: str, stamp: int) -> ShardFile:
    """An open shard; ``stamp`` tells a rewritten file from the one that was mapped."""
    return ShardFile(Path(path))
