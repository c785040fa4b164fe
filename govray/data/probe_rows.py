"""The rows that a corpus is measured by: some that it trained on, and some of its reserve.

Invariants:

* **Records are drawn, not rows**: each by one row, the designated one
  (``PreparedRecords.designated``). Neither its length has a part in that, nor when its rows are
  read. Where the reserve was drawn by family, it is one record of each family. So what is compared
  is what was drawn, both sides are exchangeable, and a test of them is exact. Sampling rows instead
  would favour long records on one side.
* Where these are few, the rows behind the designated one stand beside it, as many of each record on
  both sides. A record's scores are averaged, so it is known better.
* **Both sides come from the same places.** Probe rows are drawn uniformly among the designated rows
  read up to a step, without those that a gate left out. Reserve rows are drawn among those
  that would lie where rows were read by then. So a corpus sorted by topic has the same topics on
  both sides, though its order reads blocks of rows together.
* Which rows are drawn is a function of (seed, corpus, step).
* **Bounded**: a profile opens ``PARTS_KEPT`` parts of a corpus, in which both sides lie.
* Where fewer than ``LEAST_ROWS`` designated rows were read, the newest rows stand in. They show
  what was measured, and are no evidence (`Chosen.tested`).
* Planted canaries are not among them: the reserve has nothing like them.
* The choice depends on the corpus alone: no other corpus changes a row.
* Every rank chooses the same rows; each reads the slice that is asked of it, verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from govray.data.arrow_rows import ArrowRows
from govray.data.records_file import open_records
from govray.data.step_reader import Tokens
from govray.governance.formats.record_columns import Split
from govray.governance.record import plan_rows
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.incidents import LEAST_ROWS
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import PARTS_KEPT, PreparedRecords
from govray.governance.record.row_order import round_keys
from govray.storage.place import Place

_CHUNK = 1 << 14
"""Rows, or positions of the plan, that are looked at together at most."""

_AT_FIRST = 1 << 7
"""Rows that are looked at together at first; then twice as many each time, to `_CHUNK`."""

_LOOKED_AT = 1 << 18
"""Rows that a side looks at for designated ones. Of a book as long as that one row is found."""

_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chosen:
    """The rows of one corpus for one probe.

    Attributes:
        trained: Rows trained on.
        trained_records: Entry of the record that each trained row has most tokens of.
        reserve_records: The same of each reserve row.
        tested: Whether the records were drawn by their designated rows.
    """

    corpus: str
    trained: tuple[int, ...]
    reserve: tuple[int, ...]
    trained_records: tuple[str, ...]
    reserve_records: tuple[str, ...]
    tested: bool = True

    def __len__(self) -> int:
        return len(self.trained) + len(self.reserve)


class Probes:
    """Chooses and reads probe rows in a prepared folder.

    Args:
        folder: The prepared folder; a path on this machine, or one below a bucket.
        manifest: Its prepare manifest, verified.
        records: Its records; by default those of the folder.
    """

    def __init__(
        self,
        folder: Place,
        manifest: Manifest,
        plan: BatchPlan,
        records: PreparedRecords | None = None,
    ) -> None:
        self._manifest = manifest
        self._plan = plan
        self._records = records or open_records(folder, manifest)
        self._trained = ArrowRows(folder, manifest)
        self._reserve = ArrowRows(folder, manifest, reserve=True)

    def choose(self, corpus: str, step: int, rows: int, *, gate: int | None = None) -> Chosen:
        """Rows of a corpus after a step.

        Args:
            step: The last step that the weights hold.
            rows: How many records of each side; fewer where there are fewer. Then each may have
                several rows, of both sides together ``2·rows`` at most.
            gate: The first step that left the corpus out, if one did.
        """
        last = step if gate is None else min(step, gate - 1)
        stop = _read_until(self._plan, corpus, last)
        parts = self._drawn_parts(corpus, step, stop)
        trained = self._designated(corpus, step, stop, rows, parts, "train")
        reserve = self._designated(corpus, step, stop, rows, parts, "reserve")
        if min(len(trained), len(reserve)) >= LEAST_ROWS:
            each = 2 * rows // (len(trained) + len(reserve))
            ours = self._several(corpus, trained, each, stop, "train")
            theirs = self._several(corpus, reserve, each, stop, "reserve")
            return Chosen(corpus, ours[0], theirs[0], ours[1], theirs[1])
        # The reserve holds nothing to compare canaries with.
        own = self._manifest.own_rows(corpus)
        newest = newest_rows(self._plan, corpus, last, rows, below=own)
        if len(newest) < LEAST_ROWS:  # so early that canaries are all that was read
            newest = newest_rows(self._plan, corpus, last, rows)
        every = self._drawn(
            corpus, step, range(len(self._manifest.corpus(corpus).parts)), "reserve"
        )
        drawn = tuple(islice((row for some in every for row in some.tolist()), rows))
        return Chosen(
            corpus,
            newest,
            drawn,
            self._entries(corpus, newest, "train"),
            self._entries(corpus, drawn, "reserve"),
            tested=False,
        )

    def _drawn_parts(self, corpus: str, step: int, stop: int) -> Sequence[int]:
        """The parts that a profile opens: all, or those of rows drawn among the read ones."""
        parts = self._manifest.corpus(corpus).parts
        every = range(len(parts))
        if len(parts) <= PARTS_KEPT:
            return every
        ends = np.cumsum([part.rows for part in parts])
        found: dict[int, None] = {}
        for rows in self._drawn(corpus, step, every, "train"):
            read = rows[plan_rows.read_before(self._plan, corpus, rows, stop)] if stop else rows[:0]
            found.update(dict.fromkeys(np.searchsorted(ends, read, side="right").tolist()))
            if len(found) >= PARTS_KEPT:
                break
        return sorted(islice(found, PARTS_KEPT))

    def _drawn(self, corpus: str, step: int, parts: Sequence[int], split: Split) -> Iterator[_Rows]:
        """The rows of these parts in the order in which a profile draws them, some at a time, as
        many as a side looks at."""
        prepared = self._manifest.corpus(corpus).parts
        shards = [part.reserve if split == "reserve" else part for part in prepared]
        counts = np.array([shard.rows if shard else 0 for shard in shards], np.int64)
        firsts = (np.cumsum(counts) - counts)[list(parts)]
        ends = np.cumsum(counts[list(parts)])
        held = int(ends[-1]) if ends.size else 0
        keys = round_keys(self._plan.seed, f"{split} rows of {corpus}", step)
        start, at_once = 0, _AT_FIRST
        while start < min(held, _LOOKED_AT):
            places = np.arange(start, min(start + at_once, held))
            start, at_once = start + at_once, min(2 * at_once, _CHUNK)
            drawn = plan_rows.permute(keys, held, places).astype(np.int64)
            numbers = np.searchsorted(ends, drawn, side="right")
            before = np.concatenate([[0], ends[:-1]])
            yield drawn - before[numbers] + firsts[numbers]

    def _designated(
        self, corpus: str, step: int, stop: int, count: int, parts: Sequence[int], split: Split
    ) -> list[tuple[int, str]]:
        """``count`` designated rows of a side, each with its record's entry. Equal records share an
        entry, and so the side that it was drawn to: one row stands for all."""
        found: dict[str, int] = {}
        for rows in self._drawn(corpus, step, parts, split) if stop else ():
            read = rows[self._was_read(corpus, rows, stop, split)]
            own = designated(self._records, corpus, read.tolist(), split, self._plan.seed)
            for row, entry in own.items():
                found.setdefault(entry, row)
            if len(found) >= count:
                break
        return [(row, entry) for entry, row in islice(found.items(), count)]

    def _several(
        self,
        corpus: str,
        found: Sequence[tuple[int, str]],
        each: int,
        stop: int,
        split: Split,
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """At most ``each`` rows of the records that stand in these rows, and each row's record."""
        beside = [
            (row, entry)
            for first, entry in found
            for row in self._records.rows_beside(corpus, first, split, each)
        ]
        rows = np.array([row for row, _ in beside], np.int64)
        read = self._was_read(corpus, rows, stop, split).tolist()
        kept = [pair for pair, seen in zip(beside, read, strict=True) if seen]
        return tuple(row for row, _ in kept), tuple(entry for _, entry in kept)

    def _was_read(self, corpus: str, rows: _Rows, stop: int, split: Split) -> npt.NDArray[np.bool_]:
        """Which rows a plan has read, or would have read, before a position of their stream."""
        stands = places(self._records, corpus, rows, split)
        return plan_rows.read_before(self._plan, corpus, stands, stop)

    def read(self, chosen: Chosen, part: range) -> tuple[Tokens, npt.NDArray[np.int64]]:
        """Some of the chosen rows, trained ones first.

        Args:
            part: Which, of ``range(len(chosen))``.

        Returns:
            Token ids ``[rows, T+1]``, zeros beyond a row's length, and lengths ``[rows]``.

        Raises:
            Refused: The rows are not those of the manifest, or a shard is missing.
        """
        tokens = np.zeros((len(part), self._plan.context + 1), dtype=np.uint32)
        lengths = np.zeros(len(part), dtype=np.int64)
        for place, index in enumerate(part):
            if index < len(chosen.trained):
                row = self._trained.row(chosen.corpus, chosen.trained[index])
            else:
                number = chosen.reserve[index - len(chosen.trained)]
                row = self._reserve.row(chosen.corpus, number)
            lengths[place] = len(row)
            tokens[place, : len(row)] = row
        return tokens, lengths

    def _entries(self, corpus: str, rows: Sequence[int], split: Split) -> tuple[str, ...]:
        found = []
        for row in rows:
            spans = self._records.row_records(corpus, row, split)
            most = max(spans, key=lambda span: (span.stop - span.start, -span.record))
            found.append(self._records.record(corpus, most.record).entry)
        return tuple(found)


def places(records: PreparedRecords, corpus: str, rows: npt.ArrayLike, split: Split) -> _Rows:
    """The training rows that these rows are, or at which reserve rows would lie. ``[len(rows)]``"""
    given = np.asarray(rows, np.int64)
    return given if split == "train" else records.places(corpus, given)


def designated(
    records: PreparedRecords, corpus: str, rows: Sequence[int], split: Split, seed: int
) -> dict[int, str]:
    """Those of ``rows`` that are the designated one of their record → its entry, in their order.
    ``seed``: of what a row of each record is drawn."""
    digest = hashlib.sha256(f"designated rows {seed} {corpus}".encode()).digest()
    key = int.from_bytes(digest[:8], "big")
    entries = records.designated(corpus, np.array(rows, np.int64), split, key)
    return {row: e for row, e in zip(rows, entries, strict=True) if e is not None}


def newest_rows(
    plan: BatchPlan, corpus: str, step: int, count: int, *, below: int | None = None
) -> tuple[int, ...]:
    """The last rows of a corpus that a plan reads up to and with ``step``, newest first.
    With ``below``, only rows of smaller number."""
    read = _read_back(plan, corpus, step, below=below)
    return tuple(islice((row for some in read for row in some), count))


def _read_back(
    plan: BatchPlan, corpus: str, step: int, *, below: int | None = None
) -> Iterator[list[int]]:
    """The rows that a plan reads up to and with ``step``, newest first, each once."""
    stream = plan.stream_of(corpus)
    stop = _read_until(plan, corpus, step)
    if stream is None or not stop:
        return
    number = [each.corpus for each in stream.corpora].index(corpus)
    each = stream.corpora[number]
    bound = each.rows if below is None else min(below, each.rows)
    found: set[int] = set()
    while stop:
        start = max((stop - 1) // stream.n * stream.n, stop - _CHUNK)
        positions = np.arange(start, stop, dtype=np.uint64)
        members, rows = plan_rows.corpus_rows(plan, stream.id, positions)
        own = rows[(members == number) & (rows < bound)]
        new = [row for row in dict.fromkeys(own[::-1].tolist()) if row not in found]
        yield new
        found.update(new)
        stop = start


def _read_until(plan: BatchPlan, corpus: str, step: int) -> int:
    """How many positions of a corpus's stream are read up to and with ``step``.
    0 if it has no stream, or the plan leaves it out."""
    stream = plan.stream_of(corpus)
    if stream is None or corpus in plan.excluded or step < stream.phase:
        return 0
    due = (step - stream.phase) // stream.every * stream.every + stream.phase
    return stream.positions(due).stop
