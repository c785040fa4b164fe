"""The batch plan: which row every position of every route stream reads, at every step.

The plan is a document and a handful of pure functions on it. It lists no order: the order is a
permutation that is *computed*, position by position. So reading at step 10,000 costs what reading
at step 0 costs, and resuming needs only a step number. A row can be traced back to the steps that
read it (``BatchPlan.reads``).

Invariants

* **World size does not appear.** Steps are global; ranks take contiguous slices of a step's
  positions (``rank_slice``), which may be empty and always concatenate to the whole.
* **Streams are independent.** A stream's order is a function of (seed, stream id, epoch, its own
  row count, the plan's ``order``) alone. Adding, dropping or excluding a stream moves no other one.
* **Every row once per epoch**, since the order is a bijection on ``[0, n)``. Of a corpus that
  states ``draws``, an epoch reads so many rows, and goes on where the epoch before ended. So all
  its rows are read equally often, up to one.
* **Exclusions are tombstones.** A position that falls on a row of an excluded corpus stays where
  it is and is not read; nothing is re-drawn in its place.
* **Silence, not wrapping.** After its epochs a stream reads nothing; its last quota may be short.
* **Streams of one stride don't come together.** A stream read at every k-th step is due at the
  steps ≡ p (mod k), its turns. p is drawn from its id (``stream_phase``). So m streams of stride k
  bring m/k a step on average, with binomial spread.

Which row a position reads is the order's (``row_order.py``).

A golden vector (``tests/governance/record/test_batch_plan.py`` holds more)::

    stream_phase("sha256:" + "00" * 31 + "ff", 100)  ==  55
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Self

from pydantic import Field, model_validator

from govray.errors import Malformed, UsageError
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import MAX_EXACT, Natural, Positive
from govray.governance.formats.document import Digest, Document, Name
from govray.governance.record.row_order import EpochOrder, RowOrder, epoch_order

_ORDERS_KEPT = 4096
"""Orders of epochs that a plan keeps at hand: a kilobyte each."""


def rank_slice(positions: range, rank: int, world: int) -> range:
    """Rank ``rank``'s contiguous share of ``positions``, possibly empty. The shares of ranks 0 …
    world−1 concatenate to ``positions`` and differ by at most one in length."""
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is outside [0, {world})")
    total = len(positions)
    return positions[total * rank // world : total * (rank + 1) // world]


def slice_rank(total: int, offset: int, world: int) -> int:
    """The rank whose ``rank_slice`` of ``total`` positions holds the one at ``offset``."""
    if not 0 <= offset < total:
        raise ValueError(f"offset {offset} is outside [0, {total})")
    return ((offset + 1) * world - 1) // total


def stream_phase(stream: str, every: int) -> int:
    """Where in its stride a stream is due: its id, a ``sha256:`` digest, modulo ``every``.

    A function of these two alone, so adding or dropping a stream moves no other. Digests are
    evenly spread, so turns are too.
    """
    return int(stream.removeprefix("sha256:"), 16) % every


class StreamCorpus(Document):
    """One corpus of a stream, and the packed training rows it brings.

    An epoch reads ``draws`` of them, if that is given, else each once. Draw d of epoch e is row
    (e · draws + d) mod ``rows``.
    """

    corpus: Name
    rows: Natural
    draws: Positive | None = None

    @model_validator(mode="after")
    def _well_formed(self) -> Self:
        if self.draws is not None and (not self.rows or self.draws == self.rows):
            raise ValueError(f"{self.corpus}: draws are for rows that are not read once each")
        return self

    @property
    def drawn(self) -> int:
        """Rows that an epoch reads."""
        return self.rows if self.draws is None else self.draws


class StreamPlan(Document):
    """How one route stream is read: ``quota`` rows at every ``every``-th step, for ``epochs``.

    ``id`` is the digest of the route; ``profile`` is the policy's label for it, for people.
    ``phase`` is the first step that reads it.
    Stream row ``r`` in ``[0, n)`` counts through what an epoch reads of ``corpora``, in their
    (sorted) order.
    """

    id: Digest
    profile: str
    corpora: tuple[StreamCorpus, ...] = Field(min_length=1)
    quota: Positive
    every: Positive = 1
    phase: Natural
    epochs: Positive = 1

    @model_validator(mode="after")
    def _well_formed(self) -> Self:
        names = [c.corpus for c in self.corpora]
        if names != sorted(set(names)):
            raise ValueError(f"stream {self.id}: corpora are not sorted or not distinct")
        if self.length > MAX_EXACT:
            raise ValueError(f"stream {self.id}: rows times epochs exceed 2**53 - 1")
        if self.phase >= self.every:
            raise ValueError(f"stream {self.id}: phase {self.phase} is not below {self.every}")
        return self

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """Stream row index just past each corpus."""
        return tuple(accumulate(c.drawn for c in self.corpora))

    @property
    def n(self) -> int:
        """Rows in one epoch."""
        return self._ends[-1]

    @property
    def length(self) -> int:
        """Positions in all epochs."""
        return self.n * self.epochs

    @property
    def readings(self) -> int:
        """Turns until it is silent."""
        return -(-self.length // self.quota)

    def positions(self, step: int) -> range:
        """The positions read at ``step``; empty off the stride and after the last epoch."""
        if step % self.every != self.phase:
            return range(0)
        reading = step // self.every
        start = min(reading * self.quota, self.length)
        return range(start, min(start + self.quota, self.length))

    def locate(self, row: int, epoch: int = 0) -> tuple[str, int]:
        """Stream row index in an epoch → (corpus, row within the corpus)."""
        if not 0 <= row < self.n:
            raise ValueError(f"stream row {row} is outside [0, {self.n})")
        k = bisect_right(self._ends, row)
        member = self.corpora[k]
        draw = row - (self._ends[k] - member.drawn)
        if member.draws is None:
            return member.corpus, draw
        return member.corpus, (epoch * member.draws + draw) % member.rows

    def indices(self, number: int, row: int, epoch: int) -> range:
        """The stream row indices that an epoch has of a row of the ``number``-th corpus."""
        member = self.corpora[number]
        start = self._ends[number] - member.drawn
        if member.draws is None:
            return range(start + row, start + row + 1)
        first = (row - epoch * member.draws) % member.rows
        return range(start + first, start + member.draws, member.rows)


class BatchPlan(Document):
    """The deterministic, resumable order in which every route stream is read.

    ``manifest`` is the digest of the prepare manifest whose rows are meant, ``context`` the loss
    targets of a full row. ``excluded`` names the corpora whose rows are tombstones. ``order`` has
    the sizes of the local order.
    """

    seed: Natural
    max_steps: Positive
    manifest: Digest
    context: Positive
    excluded: tuple[Name, ...] = ()
    order: RowOrder
    streams: tuple[StreamPlan, ...]

    @model_validator(mode="after")
    def _well_formed(self) -> Self:
        ids = [s.id for s in self.streams]
        if ids != sorted(set(ids)):
            raise ValueError("streams are not sorted by id or not distinct")
        names = [c.corpus for s in self.streams for c in s.corpora]
        if len(names) != len(set(names)):
            raise ValueError("a corpus stands in two streams")
        if list(self.excluded) != sorted(set(self.excluded)):
            raise ValueError("excluded corpora are not sorted or not distinct")
        if unknown := sorted(set(self.excluded) - set(names)):
            raise ValueError(f"excluded corpora are in no stream: {', '.join(unknown)}")
        return self

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the plan's canonical JSON, ``sha256:<hex>``."""
        return canonical_json.sha256(canonical_json.encode(self.to_json()))

    @cached_property
    def _by_id(self) -> dict[str, StreamPlan]:
        return {s.id: s for s in self.streams}

    @cached_property
    def _by_corpus(self) -> dict[str, StreamPlan]:
        return {c.corpus: s for s in self.streams for c in s.corpora}

    @cached_property
    def _by_stride(self) -> dict[int, dict[int, list[StreamPlan]]]:
        """Stride → phase → streams, so that a step costs what it reads, not what there is."""
        found: dict[int, dict[int, list[StreamPlan]]] = {}
        for s in self.streams:
            found.setdefault(s.every, {}).setdefault(s.phase, []).append(s)
        return found

    @cached_property
    def _orders(self) -> dict[tuple[str, int], EpochOrder]:
        """Orders already derived, by (stream id, epoch)."""
        return {}

    @property
    def corpora(self) -> tuple[str, ...]:
        """Every corpus of every stream, excluded ones too, sorted."""
        return tuple(sorted(self._by_corpus))

    def without(self, *corpora: str) -> BatchPlan:
        """This plan with the rows of ``corpora`` as tombstones too.

        Not ``model_copy(update=…)``, which would keep what was computed for the old plan.

        Raises:
            UsageError: the plan has no such corpus.
        """
        for corpus in corpora:
            if corpus not in self._by_corpus:
                raise UsageError(
                    "the run read no such corpus",
                    where=corpus,
                    do=f"It read {', '.join(self.corpora) or 'none'}.",
                )
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return BatchPlan(**fields | {"excluded": tuple(sorted({*self.excluded, *corpora}))})

    def stream(self, stream_id: str) -> StreamPlan:
        """Raises ``Malformed`` if the plan has no such stream."""
        try:
            return self._by_id[stream_id]
        except KeyError:
            raise Malformed("no such stream in the batch plan", where=stream_id) from None

    def stream_of(self, corpus: str) -> StreamPlan | None:
        """The stream that reads ``corpus``, or None."""
        return self._by_corpus.get(corpus)

    def epoch_order(self, stream_id: str, epoch: int) -> EpochOrder:
        """The order in which one epoch of one stream is read.

        Raises:
            Malformed: The plan has no such stream.
        """
        found = self._orders.get((stream_id, epoch))
        if found is None:
            rows = self.stream(stream_id).n
            found = epoch_order(self.order, rows, seed=self.seed, stream=stream_id, epoch=epoch)
            if len(self._orders) >= _ORDERS_KEPT:
                self._orders.clear()
            self._orders[stream_id, epoch] = found
        return found

    def positions(self, step: int) -> dict[str, range]:
        """Stream id → the positions read at ``step``; streams that read none are absent.

        Steps count from 0; at and after ``max_steps`` nothing is read.
        """
        if not 0 <= step < self.max_steps:
            return {}
        due = [
            stream
            for every, by_phase in self._by_stride.items()
            for stream in by_phase.get(step % every, ())
        ]
        ranges = {s.id: s.positions(step) for s in sorted(due, key=lambda s: s.id)}
        return {stream_id: r for stream_id, r in ranges.items() if r}

    def row(self, stream_id: str, position: int) -> int:
        """The stream row index that ``position`` reads, whether or not it is a tombstone."""
        stream = self.stream(stream_id)
        if not 0 <= position < stream.length:
            raise ValueError(f"position {position} is outside [0, {stream.length})")
        epoch, offset = divmod(position, stream.n)
        return self.epoch_order(stream_id, epoch).row(offset)

    def read(self, stream_id: str, positions: range) -> Iterator[tuple[int, str, int]]:
        """(position, corpus, row in corpus) for each position that is not a tombstone."""
        stream = self.stream(stream_id)
        for position in positions:
            corpus, row = stream.locate(self.row(stream_id, position), position // stream.n)
            if corpus not in self.excluded:
                yield position, corpus, row

    def rows(self, step: int) -> dict[str, list[tuple[int, str, int]]]:
        """Stream id → [(position, corpus, row in corpus)] that ``step`` reads.

        Tombstones are skipped; a stream that reads nothing at this step is absent.
        """
        read = {i: list(self.read(i, positions)) for i, positions in self.positions(step).items()}
        return {stream_id: rows for stream_id, rows in read.items() if rows}

    def reads(self, corpus: str, row: int) -> tuple[int, ...]:
        """The steps that read ``row`` of ``corpus``, ascending, by inverting the permutation.

        A step stands there as often as it reads the row.
        """
        stream = self.stream_of(corpus)
        if stream is None or corpus in self.excluded:
            return ()
        k = next(k for k, c in enumerate(stream.corpora) if c.corpus == corpus)
        rows = stream.corpora[k].rows
        if not 0 <= row < rows:
            raise ValueError(f"row {row} of {corpus} is outside [0, {rows})")
        # Epochs that no step reaches need no inversion, however many are configured.
        readings = max(0, -(-(self.max_steps - stream.phase) // stream.every))
        epochs = min(stream.epochs, -(-readings * stream.quota // stream.n))
        steps = []
        for epoch in range(epochs):
            order = self.epoch_order(stream.id, epoch)
            for index in stream.indices(k, row, epoch):
                reading = (epoch * stream.n + order.offset(index)) // stream.quota
                step = reading * stream.every + stream.phase
                if step < self.max_steps:
                    steps.append(step)
        return tuple(sorted(steps))


def check_quotas(labels: Iterable[str], quotas: Collection[str]) -> None:
    """Raise ``UsageError`` for a profile's label that has no quota."""
    if missing := sorted({*labels} - {*quotas}):
        raise UsageError(
            f"profile {missing[0]!r} is in use but has no quota",
            where="rows_per_step",
            do=f"Add {missing[0]!r} with the rows that each of its streams gives a step.",
        )


def plan_streams(
    streams: Mapping[str, tuple[str, str]],
    rows: Mapping[str, int],
    *,
    rows_per_step: Mapping[str, int],
    every: Mapping[str, int] | None = None,
    epochs: Mapping[str, int] | None = None,
    draws: Mapping[str, int] | None = None,
) -> tuple[StreamPlan, ...]:
    """Group corpora into streams.

    Args:
        streams: Corpus → (stream id, profile label). Corpora with equal routes share an id.
        rows: Corpus → packed training rows.
        rows_per_step: Profile label → quota of *each* stream with that label.
        every: Profile label → stride in steps, 1 where absent.
        epochs: Profile label → epochs, 1 where absent.
        draws: Corpus → rows that an epoch reads of it, each once where absent.
    """
    members: dict[str, list[str]] = {}
    for corpus in sorted(streams):
        members.setdefault(streams[corpus][0], []).append(corpus)
    planned = []
    for stream_id, corpora in sorted(members.items()):
        # Two profiles may resolve to one route: they share the stream, so they must agree on it.
        labels = sorted({streams[c][1] for c in corpora})
        check_quotas(labels, rows_per_step)
        settings = {
            (rows_per_step[label], (every or {}).get(label, 1), (epochs or {}).get(label, 1))
            for label in labels
        }
        if len(settings) > 1:
            raise UsageError(
                f"profiles {', '.join(labels)} resolve to one route but are read differently",
                where="rows_per_step",
                do="Give them equal quotas, strides and epochs.",
            )
        [(quota, stride, passes)] = settings
        planned.append(
            StreamPlan(
                id=stream_id,
                profile=labels[0],
                corpora=tuple(_member(c, rows[c], (draws or {}).get(c)) for c in corpora),
                quota=quota,
                every=stride,
                phase=stream_phase(stream_id, stride),
                epochs=passes,
            )
        )
    return tuple(planned)


def _member(corpus: str, rows: int, draws: int | None) -> StreamCorpus:
    """Without ``draws`` where each row is read once, so that such plans have one spelling."""
    return StreamCorpus(corpus=corpus, rows=rows, draws=None if draws in (0, rows) else draws)
