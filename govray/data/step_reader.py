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
* **A row group is decoded once for all steps that are read together.** Rows come at random, so
  one at a time each would cost the decoding and hashing of some hundred others. Windows begin
  with one step and double, so that the first step of a run, resumed or not, waits for itself.
* **A step that cannot be read is still a step.** Its ``StepRows`` carries the error, so that the
  rank can tell the others.

The caller has verified the manifest's signature.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from govray.data.shard_file import Rows, ShardFile, storage_dtype
from govray.errors import GovrayError, Refused
from govray.governance.record import plan_rows
from govray.governance.record.batch_plan import BatchPlan, rank_slice
from govray.governance.record.prepare_manifest import AnyCorpus, BoundPart, BoundShard, Manifest

Tokens = npt.NDArray[np.uint32]
Where = tuple[str, int, int]
"""A row group: corpus, number of the part, number of the group in it."""

WINDOW_TOKENS = 1 << 22
"""About how many tokens a rank reads in one window: 16 MB."""
WINDOW_STEPS = 1024
"""Steps in one window at most."""

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
    ]
)
"""How ``StepRows`` travel: one row a step; ``tokens`` are little-endian uint32."""


@dataclass(frozen=True)
class StepRows:
    """One rank's rows of one step, in the order of streams (by id), then positions.

    Attributes:
        step: The step.
        tokens: ``[rows, T+1]`` token ids; zeros beyond a row's length.
        lengths: ``[rows]`` tokens of each row, at least 2; a row has length − 1 loss targets.
        streams: Stream id of each row.
        positions: ``[rows]`` place of each row within its stream's quota of this step, over all
            ranks. Tombstones keep their place.
        corpora: Corpus of each row.
        error: Why the step could not be read; then there are no rows.
    """

    step: int
    tokens: Tokens
    lengths: npt.NDArray[np.int64]
    streams: tuple[str, ...]
    positions: npt.NDArray[np.int64]
    corpora: tuple[str, ...]
    error: str | None = None


class ArrowRows:
    """Random access to the packed rows of a prepared folder. Picklable, and small when pickled.

    Args:
        folder: The prepared folder; a path on this machine.
        manifest: Its prepare manifest, verified.
        reserve: The rows of the reserve instead, which no plan reads.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, reserve: bool = False) -> None:
        self._folder = folder
        self._dtype = storage_dtype(manifest.tokenizer.vocabulary)
        self._corpora = {c.corpus: _index(c, reserve) for c in manifest.corpora}

    def rows_in(self, corpus: str) -> int:
        """Packed rows of a corpus; 0 if the folder does not hold it."""
        parts = self._corpora.get(corpus, ())
        return parts[-1].stop if parts else 0

    def row(self, corpus: str, row: int) -> npt.NDArray[np.unsignedinteger]:
        """Token ids ``[k]`` of a row, 2 <= k <= T+1, in the storage dtype.

        Raises:
            Malformed: the row group does not decode. Names file and row group.
            Refused: the rows are not those of the manifest, or the shard is missing.
            ValueError: no such row.
        """
        where, index = self.locate(corpus, row)
        return self.group(where).row(index)

    def locate(self, corpus: str, row: int) -> tuple[Where, int]:
        """The row group that holds a row, and the row's place in it.

        Raises:
            ValueError: no such row.
        """
        if not 0 <= row < self.rows_in(corpus):
            raise ValueError(f"row {row} of {corpus} is outside [0, {self.rows_in(corpus)})")
        parts = self._corpora[corpus]
        number = bisect_right(parts, row, key=lambda p: p.stop)
        part = parts[number]
        offset = row - part.start
        group = bisect_right(part.group_stops, offset)
        first = part.group_stops[group - 1] if group else 0
        return (corpus, number, group), offset - first

    def group(self, where: Where) -> Rows:
        """The rows of a row group, verified.

        Raises:
            Malformed: it does not decode. Names file and row group.
            Refused: its rows are not those of the manifest, or the shard is missing.
        """
        corpus, number, group = where
        part = self._corpora[corpus][number]
        path = str(self._folder / part.file)
        try:
            stamp = os.stat(path).st_mtime_ns
        except OSError:
            stamp = 0  # missing: opening it says so
        shard = _shard(path, stamp)
        digests = part.digests if part.bound is None else shard.listed(part.bound)
        digest = "sha256:" + digests[32 * group : 32 * (group + 1)].hex()
        return shard.read(group, digest, self._dtype)


class StepReader:
    """One rank's rows, step by step. Picklable.

    Args:
        folder: The prepared folder; a path on every machine that reads.
        manifest: Its prepare manifest, verified.
        plan: The batch plan over it.
        rank, world: Whose slices; ``0 <= rank < world``.

    Attributes:
        plan, world: As given.

    Raises:
        Refused: the plan was made for other prepared data. Names the corpus.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, plan: BatchPlan, *, rank: int, world: int
    ) -> None:
        self._folder = folder
        self._rows = ArrowRows(folder, manifest)
        self._rank = rank
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
    def readable_here(self) -> bool:
        """Whether this process can read the prepared folder.

        A missing shard is reported when it is read.
        """
        return os.access(self._folder, os.R_OK | os.X_OK)

    def steps(self, start: int = 0) -> Iterator[StepRows]:
        """Every remaining step from ``start`` on, in order."""
        for window in self.windows(start):
            yield from window

    def windows(self, start: int = 0, stop: int | None = None) -> Iterator[list[StepRows]]:
        """The same, in runs of steps that are read together.

        Args:
            start: The first step.
            stop: The first step that is left out; None for the plan's end.
        """
        size, stop = 1, self.plan.max_steps if stop is None else stop
        while start < stop:
            window: list[_Planned] = []
            tokens = 0
            while len(window) < size and tokens < WINDOW_TOKENS and start < stop:
                window.append(self._planned(start))
                tokens += len(window[-1].rows) * (self.plan.context + 1)
                start += 1
            yield self._read(window)
            size = min(2 * size, WINDOW_STEPS)

    def read(self, step: int) -> StepRows:
        """The rows of one step; an unreadable row makes ``error``, not an exception."""
        [rows] = self._read([self._planned(step)])
        return rows

    def _read(self, planned: Sequence[_Planned]) -> list[StepRows]:
        """The rows of some steps, each row group decoded once."""
        wanted = sorted({row.where for step in planned for row in step.rows})
        places: dict[Where, list[tuple[StepRows, int, int]]] = {where: [] for where in wanted}
        found = [_empty(step, self.plan.context) for step in planned]
        for target, step in zip(found, planned, strict=True):
            for i, row in enumerate(step.rows):
                places[row.where].append((target, i, row.index))
        errors: dict[Where, GovrayError] = {}
        for where, targets in places.items():
            try:
                group = self._rows.group(where)
            except GovrayError as error:
                errors[where] = error
                continue
            stops = np.cumsum(group.lengths).tolist()
            for target, i, index in targets:
                begin = stops[index - 1] if index else 0
                length = target.lengths[i] = stops[index] - begin
                target.tokens[i, :length] = group.values[begin : stops[index]]
        if not errors:
            return found
        # A step has the error of its first bad row, whichever steps are read with it.
        first = [
            next((errors[r.where] for r in s.rows if r.where in errors), None) for s in planned
        ]
        return [
            rows
            if error is None
            else _empty(_Planned(rows.step, ()), self.plan.context, str(error))
            for rows, error in zip(found, first, strict=True)
        ]

    def _planned(self, step: int) -> _Planned:
        rows = []
        for stream_id, positions in self.plan.positions(step).items():
            mine = rank_slice(positions, self._rank, self.world)
            for position, corpus, row in planned_rows(self.plan, stream_id, mine):
                where, index = self._rows.locate(corpus, row)
                rows.append(_PlannedRow(stream_id, position - positions.start, where, index))
        return _Planned(step, tuple(rows))

    def load(self, items: pa.Table) -> pa.Table:
        """For ``map_batches``: ``plan_items`` rows in, one encoded ``StepRows`` each out."""
        found = self._read([self._planned(step) for step in items.column("step").to_pylist()])
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
        )


def planned_rows(
    plan: BatchPlan, stream_id: str, positions: range
) -> Iterator[tuple[int, str, int]]:
    """``BatchPlan.read``, with the permutation computed for all positions at once.

    Yields (position, corpus, row in corpus); tombstones are left out.
    """
    stream = plan.stream(stream_id)
    stops = np.cumsum([c.rows for c in stream.corpora])
    where = np.arange(positions.start, positions.stop, dtype=np.uint64)
    rows = plan_rows.stream_rows(plan, stream_id, where)
    members = np.searchsorted(stops, rows, side="right")
    for position, member, row in zip(positions, members, rows, strict=True):
        corpus = stream.corpora[member]
        if corpus.corpus not in plan.excluded:
            yield position, corpus.corpus, int(row - (stops[member] - corpus.rows))


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


@dataclass(frozen=True)
class _PlannedRow:
    """A row of a step, and where it lies: row ``index`` of row group ``where``."""

    stream: str
    position: int
    where: Where
    index: int


@dataclass(frozen=True)
class _Planned:
    """What a rank reads at a step."""

    step: int
    rows: tuple[_PlannedRow, ...]


def _index(corpus: AnyCorpus, reserve: bool) -> tuple[_PartIndex, ...]:
    parts: list[_PartIndex] = []
    start = 0
    shards = [part.reserve if reserve else part for part in corpus.parts]
    planted = [] if reserve else [corpus.planted]  # their rows come behind the corpus's own
    for shard in (each for each in (*shards, *planted) if each is not None):
        if isinstance(shard, BoundPart | BoundShard):
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


# The process's, since Ray Data unpickles the reader for every task.


@lru_cache(maxsize=_CACHED_SHARDS)
def _shard(path: str, stamp: int) -> ShardFile:
    """An open shard; ``stamp`` tells a rewritten file from the one that was mapped."""
    return ShardFile(Path(path))


def _empty(planned: _Planned, context: int, error: str | None = None) -> StepRows:
    """A step's rows, whose tokens and lengths are still to be read."""
    rows = planned.rows
    return StepRows(
        step=planned.step,
        tokens=np.zeros((len(rows), context + 1), dtype=np.uint32),
        lengths=np.zeros(len(rows), dtype=np.int64),
        streams=tuple(row.stream for row in rows),
        positions=np.array([row.position for row in rows], dtype=np.int64),
        corpora=tuple(row.where[0] for row in rows),
        error=error,
    )
