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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from govray.data.arrow_rows import ArrowRows
from govray.errors import GovrayError, Refused
from govray.governance.record import plan_rows
from govray.governance.record.batch_plan import BatchPlan, rank_slice
from govray.governance.record.prepare_manifest import (
    MANIFEST_FILE,
    Manifest,
)
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

Tokens = npt.NDArray[np.uint32]
WINDOW_TOKENS = 1 << 22
"""About how many tokens a rank reads in one window: 16 MB."""
WINDOW_STEPS = 1024
"""Steps in one window at most."""

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
