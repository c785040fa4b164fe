"""The rows that a corpus is measured by: those it trained on last, and some of its reserve.

Invariants:

* **One row of each record**, the designated one (``PreparedRecords.designated``), drawn without
  regard to the record's length or to when its rows are read. Where the reserve was drawn by family,
  it is one of each family. So what is compared is what was drawn, both sides are exchangeable, and
  a test of them is exact. Sampling rows instead would favour long records on one side.
* **Probe rows were trained on.** They are the newest designated rows of the plan up to a step,
  without those that a gate left out. A row that was read twice counts once.
* **Reserve rows never were**, and which ones are taken is a function of (seed, corpus, step).
* Where fewer than ``LEAST_ROWS`` designated rows were read, the newest rows stand in. They show
  what was measured, and are no evidence (`Chosen.tested`).
* Planted canaries are not among them: the reserve has nothing like them.
* The choice depends on the corpus alone: no other corpus changes a row.
* Every rank chooses the same rows; each reads the slice that is asked of it, verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
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
from govray.governance.record.prepared_records import PreparedRecords
from govray.governance.record.row_order import round_keys
from govray.storage.place import Place

_CHUNK = 1 << 14
"""Positions of the plan that are looked at together, from the newest back."""

_LOOKED_AT = 1 << 18
"""Rows that a side looks at for designated ones. Of a book as long as that one row is found."""


@dataclass(frozen=True)
class Chosen:
    """The rows of one corpus for one probe.

    Attributes:
        trained: Rows trained on, the newest first.
        trained_records: Entry of the record that each trained row has most tokens of.
        reserve_records: The same of each reserve row.
        tested: Whether each row is the designated one of its record.
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
            rows: How many of each side; fewer where there are fewer.
            gate: The first step that left the corpus out, if one did.
        """
        last = step if gate is None else min(step, gate - 1)
        # The reserve holds nothing to compare canaries with.
        own = self._manifest.own_rows(corpus)
        read = _read_back(self._plan, corpus, last, below=own)
        trained = self._designated(corpus, read, rows, "train")
        reserve = self._designated(corpus, self._drawn_reserve(corpus, step), rows, "reserve")
        if min(len(trained), len(reserve)) >= LEAST_ROWS:
            return Chosen(
                corpus,
                tuple(row for row, _ in trained),
                tuple(row for row, _ in reserve),
                tuple(entry for _, entry in trained),
                tuple(entry for _, entry in reserve),
            )
        newest = newest_rows(self._plan, corpus, last, rows, below=own)
        if len(newest) < LEAST_ROWS:  # so early that canaries are all that was read
            newest = newest_rows(self._plan, corpus, last, rows)
        drawn = tuple(
            islice((row for some in self._drawn_reserve(corpus, step) for row in some), rows)
        )
        return Chosen(
            corpus,
            newest,
            drawn,
            self._entries(corpus, newest, "train"),
            self._entries(corpus, drawn, "reserve"),
            tested=False,
        )

    def _drawn_reserve(self, corpus: str, step: int) -> Iterator[list[int]]:
        """All reserve rows in the order in which a profile draws them, some at a time."""
        held = self._manifest.reserve_rows(corpus)
        keys = round_keys(self._plan.seed, f"reserve of {corpus}", step)
        for start in range(0, held, _CHUNK):
            places = np.arange(start, min(start + _CHUNK, held))
            yield plan_rows.permute(keys, held, places).tolist()

    def _designated(
        self, corpus: str, rows: Iterable[list[int]], count: int, split: Split
    ) -> list[tuple[int, str]]:
        """The first ``count`` designated rows of these, each with its record's entry. Equal records
        share an entry, and so the side that it was drawn to: one row stands for all."""
        found: dict[str, int] = {}
        looked_at, at_once = 0, 4 * count
        for some in rows:
            while some and len(found) < count and looked_at < _LOOKED_AT:
                here, some = some[:at_once], some[at_once:]
                own = designated(self._records, corpus, here, split, self._plan.seed)
                for row, entry in own.items():
                    found.setdefault(entry, row)
                looked_at, at_once = looked_at + len(here), min(2 * at_once, _CHUNK)
            if len(found) >= count or looked_at >= _LOOKED_AT:
                break
        return [(row, entry) for entry, row in islice(found.items(), count)]

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
    if stream is None or corpus in plan.excluded or step < stream.phase:
        return
    number = [each.corpus for each in stream.corpora].index(corpus)
    each = stream.corpora[number]
    bound = each.rows if below is None else min(below, each.rows)
    due = (step - stream.phase) // stream.every * stream.every + stream.phase
    found: set[int] = set()
    stop = stream.positions(due).stop
    while stop:
        start = max((stop - 1) // stream.n * stream.n, stop - _CHUNK)
        positions = np.arange(start, stop, dtype=np.uint64)
        members, rows = plan_rows.corpus_rows(plan, stream.id, positions)
        own = rows[(members == number) & (rows < bound)]
        new = [row for row in dict.fromkeys(own[::-1].tolist()) if row not in found]
        yield new
        found.update(new)
        stop = start
