"""The packed rows of a prepared folder, by number: verified when they are decoded, and kept.

A row group's digest is checked whenever it is decoded. One row alone would cost the decoding and
hashing of its whole group, so a process keeps the groups that it used last.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from govray.data.prepared.object_ranges import PIECE, submit
from govray.data.shard_file import Rows, ShardFile, ShardReplaced, storage_dtype
from govray.errors import GovrayError
from govray.governance.record.prepare_manifest import (
    Manifest,
    Part,
    PreparedCorpus,
    ReserveShard,
)
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place, place
from govray.storage.storage_url import is_url

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


class GroupKey(NamedTuple):
    """What is kept: the content of one row group, as one file had it.

    Attributes:
        path: The shard.
        stamp: When it was written, in nanoseconds: a shard written anew has a new one.
        group: Index of the row group.
        digest: What its rows were verified against: their digest, or that of the list in which it
            stands.
        dtype: The storage dtype that they were read in.
    """

    path: str
    stamp: int
    group: int
    digest: str
    dtype: str


class GroupCache:
    """Verified rows by `GroupKey`; threads may share it.
    ``most_bytes``: bytes of token ids held at most."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[GroupKey, Rows] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._kept

    def get(self, key: GroupKey) -> Rows | None:
        with self._lock:
            rows = self._kept.get(key)
            if rows is not None:
                self._kept.move_to_end(key)
            return rows

    def keep(self, key: GroupKey, rows: Rows) -> None:
        """Keep these rows, and let others go for them. Rows that exceed it all are not kept."""
        size = rows.values.nbytes
        if size > self._most:
            return
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = rows
            self._bytes += size
            while self._bytes > self._most:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= gone.values.nbytes

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0


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
