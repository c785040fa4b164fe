"""The rows of every step, read from shards in the order of the batch plan.

``StepReader.windows`` reads memory-mapped shards in this process::

    reader = StepReader(folder, manifest, plan, rank=rank, world=world)
    for window in reader.windows(start):
        for rows in window: ...

``data/prepared/partition.py`` gives the same bytes, read by tasks of Ray Data.

Invariants

* **The plan decides, the reader computes.** Which rows a step reads is a function of plan, step,
  rank and world size. The ranks' rows concatenate to the plan's, at any world size.
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

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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


class Unread(NamedTuple):
    """Why a row could not be read.
    ``refused``: whether that is the data's fault; a store that fails may answer another time."""

    what: str
    refused: bool


@dataclass(frozen=True)
class Window:
    """What a rank reads at some steps, one entry for each row, in the order of steps.

    Attributes:
        bounds: Where each step's rows begin, and where the last one's end.
        streams, corpora: ``[rows]``, numbers in the plan's streams and corpora.
        positions: ``[rows]``, as in `StepRows`.
        groups: ``[rows]``, the row group's number.
        places: ``[rows]``, the row's place in its row group.
        tokens: ``[rows, T+1]``, zeros before a row is read.
        lengths: ``[rows]``, as in `StepRows`.
        unread: Why rows could not be read, by their index.
    """

    steps: Sequence[int]
    bounds: list[int]
    streams: npt.NDArray[np.int64]
    corpora: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    tokens: Tokens
    lengths: npt.NDArray[np.int64]
    unread: dict[int, Unread] = field(default_factory=dict)


class StepReader:
    """One rank's rows, step by step. Picklable.

    Args:
        folder: The prepared folder; a path on every machine that reads, or one below a bucket.
        manifest: Its prepare manifest, verified.
        rank, world: Whose slices; ``0 <= rank < world``.

    Attributes:
        corpora: Those whose rows it reads, sorted.
        row_schema: What the rows hold; None for packed text.
        width: Words of a row.

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
        self.corpora = tuple(corpus for corpus in plan.corpora if corpus not in plan.excluded)
        self.row_schema = manifest.rows
        self.width = manifest.width
        self.plan = plan
        self.world = world
        for corpus in (c for stream in plan.streams for c in stream.corpora):
            if plan.context != manifest.context or corpus.rows != self._rows.rows_in(corpus.corpus):
                raise Refused(
                    "the batch plan was made for other prepared data",
                    where=corpus.corpus,
                    do="Plan again from this manifest.",
                )

    def of(self, corpus: str) -> StepReader:
        """The same for the rows of one corpus alone, each at its step and position."""
        alone = copy.copy(self)
        alone.corpora = (corpus,)
        return alone

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
                tokens += rows * self.width
                end += 1
            yield self._read(range(start, end))
            start, size = end, min(2 * size, WINDOW_STEPS)

    def read(self, step: int) -> StepRows:
        """The rows of one step; an unreadable row makes ``error``, not an exception."""
        [rows] = self._read([step])
        return rows

    def _read(self, steps: Sequence[int]) -> list[StepRows]:
        return self.step_rows(self.window(steps))

    def window(self, steps: Sequence[int]) -> Window:
        """The rows of some steps, each row group decoded once."""
        window = self.planned(steps)
        order = np.argsort(window.groups, kind="stable")
        wanted, firsts = np.unique(window.groups[order], return_index=True)
        targets_of = dict(zip(wanted.tolist(), np.split(order, firsts[1:]), strict=False))
        for group, rows in self._rows.groups(wanted.tolist()):
            targets = targets_of[group]
            if isinstance(rows, GovrayError):
                why = Unread(str(rows), isinstance(rows, Refused))
                window.unread.update(dict.fromkeys(targets.tolist(), why))
                continue
            places = window.places[targets]
            window.lengths[targets] = rows.lengths[places]
            window.tokens[targets, : rows.matrix.shape[1]] = rows.matrix[places]
        return window

    def step_rows(self, window: Window) -> list[StepRows]:
        """The window's rows, step by step."""
        found = []
        streams = [self._streams[number] for number in window.streams.tolist()]
        corpora = [self._corpora[number] for number in window.corpora.tolist()]
        for step, (start, stop) in zip(window.steps, pairwise(window.bounds), strict=True):
            why = None
            if window.unread:
                # A step has the error of its first bad row, whichever steps are read with it.
                why = next(filter(None, map(window.unread.get, range(start, stop))), None)
                stop = start if why else stop
            found.append(
                StepRows(
                    step=step,
                    tokens=window.tokens[start:stop],
                    lengths=window.lengths[start:stop],
                    streams=tuple(streams[start:stop]),
                    positions=window.positions[start:stop],
                    corpora=tuple(corpora[start:stop]),
                    error=why.what if why else None,
                    refused=why is not None and why.refused,
                )
            )
        return found

    def planned(self, steps: Sequence[int]) -> Window:
        """Which rows this rank reads at some steps; none is read yet."""
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
        return Window(
            steps=steps,
            bounds=np.searchsorted(owners, np.arange(len(steps) + 1)).tolist(),
            streams=streams,
            corpora=corpora,
            positions=positions,
            groups=groups,
            places=places,
            tokens=np.zeros((owners.size, self.width), np.uint32),
            lengths=np.zeros(owners.size, np.int64),
        )

    def _mine(self, positions: range) -> range:
        return rank_slice(positions, self._rank, self.world)

    def _planned_of(
        self, stream: str, ranges: Sequence[tuple[int, int, int, int]]
    ) -> npt.NDArray[np.int64]:
        """What one stream brings, without tombstones and what others read.

        Args:
            ranges: Number of a step, half-open range of this rank's positions at it, and the first
                position of all ranks.

        Returns:
            ``[6, rows]``: number of the step, number of the stream, number of the corpus, and
            positions, groups and places as in `Window`.
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
            if corpus not in self.corpora:
                kept[here] = False
            else:
                found[2, here] = self._corpora.index(corpus)
                found[4, here], found[5, here] = self._rows.locate(corpus, rows[here])
        return found[:, kept]
