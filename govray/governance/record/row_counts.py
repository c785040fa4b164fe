"""What steps read of each corpus, counted over arrays: exactly what a walk over the rows counts.

Memory is bounded: the rows of a stream are computed in pieces, and only distinct rows are kept, as
8 bytes each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from govray.governance.formats.record_columns import Rows
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import Leaf
from govray.governance.record.plan_rows import read_ranges
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import RecordCounts, TargetCounts

Ranges = Mapping[str, tuple[int, int]]
"""Stream → half-open range of plan positions, of one step."""

_HALF = 32
_LOW = (1 << _HALF) - 1
_PER_SEARCH = 256
"""Rows that are computed in the time of looking one up."""
_PENDING = 1 << 20
"""Rows that wait to be merged into the distinct ones."""


@dataclass(frozen=True)
class CorpusTotal:
    """What a ledger used of one corpus.

    ``records`` are distinct records (by place in the corpus), ``rows`` distinct plan rows.
    ``tokens`` are loss targets: a row read in two epochs counts twice. ``steps`` are distinct
    (branch, step) pairs.
    """

    records: int
    rows: int
    tokens: int
    steps: int


def step_counts(
    plan: BatchPlan,
    manifest: Manifest,
    steps: Sequence[Ranges],
    targets: TargetCounts | None = None,
) -> list[dict[str, tuple[int, int]]]:
    """For each step corpus → (rows, loss targets) in its ranges; only what has rows.

    ``targets`` says how many loss targets rows have; by default the manifest does. Where rows are
    masked, the manifest knows upper bounds alone.
    """
    found: list[dict[str, tuple[int, int]]] = [{} for _ in steps]
    for stream, ranges in _by_stream(steps).items():
        for corpus, owners, rows in read_ranges(plan, stream, ranges):
            bounds = _bounds(owners)
            counts = np.diff(bounds, append=owners.size)
            sums = _sums((targets or manifest).targets_of(corpus, rows), bounds)
            for owner, count, target in zip(owners[bounds], counts, sums, strict=True):
                rows_before, targets_before = found[owner].get(corpus, (0, 0))
                found[owner][corpus] = rows_before + int(count), targets_before + target
    return found


def planned_counts(
    plan: BatchPlan,
    manifest: Manifest,
    steps: Sequence[tuple[int, Ranges]],
    targets: TargetCounts | None = None,
) -> list[dict[str, tuple[int, int]]]:
    """`step_counts` of steps of the plan, given with the ranges that it has for them.

    Where a stream has one corpus, its rows need not be computed. The few that are not full are
    found by inverting the plan's order. If ``targets`` are given, each row is looked up.
    """
    if targets is not None:
        return step_counts(plan, manifest, [ranges for _, ranges in steps], targets)
    found: list[dict[str, tuple[int, int]]] = [{} for _ in steps]
    others: list[dict[str, tuple[int, int]]] = [{} for _ in steps]
    for stream, ranges in _by_stream([each for _, each in steps]).items():
        rows = sum(stop - start for _, start, stop in ranges)
        short = _short_targets(plan, manifest, stream, rows // _PER_SEARCH)
        for owner, start, stop in ranges:
            if short is None:
                others[owner][stream] = start, stop
                continue
            corpus, missing = short
            full = (stop - start) * manifest.context
            found[owner][corpus] = stop - start, full - missing[steps[owner][0]]
    if any(others):
        for each, more in zip(found, step_counts(plan, manifest, others), strict=True):
            each |= more
    return found


def _short_targets(
    plan: BatchPlan, manifest: Manifest, stream: str, most: int
) -> tuple[str, Counter[int]] | None:
    """A stream's one corpus, and by step how many targets its rows lack to be full.
    None if it has several corpora, one that is left out, or more than ``most`` rows to look up."""
    planned = plan.stream(stream)
    corpus = planned.corpora[0].corpus
    if len(planned.corpora) > 1 or corpus in plan.excluded:
        return None
    rows, lengths = manifest.short_rows(corpus)
    if manifest.own_rows(corpus) < manifest.train_rows(corpus) or rows.size * planned.epochs > most:
        return None
    missing: Counter[int] = Counter()
    for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
        for step in plan.reads(corpus, row):
            missing[step] += manifest.context + 1 - length
    return corpus, missing


def corpus_totals(
    leaves: Iterable[Leaf], plan: BatchPlan, manifest: Manifest, records: RecordCounts
) -> dict[str, CorpusTotal]:
    """Corpus → what the leaves read of it; corpora that were not read are absent.

    Tokens are those that the leaves state (``verify/ledger_step.py`` compares them with the plan).
    Where an epoch was read whole that draws all rows, the plan's order need not be asked.
    """
    leaves = list(leaves)
    tokens: dict[str, int] = {}
    steps: dict[str, set[tuple[int, int]]] = {}
    for leaf in leaves:
        for corpus, use in leaf.corpora.items():
            tokens[corpus] = tokens.get(corpus, 0) + use.targets
            steps.setdefault(corpus, set()).add((leaf.branch, leaf.step))
    rows: dict[str, Rows | None] = {}
    for stream, ranges in _by_stream([leaf.streams for leaf in leaves]).items():
        names = [each.corpus for each in plan.stream(stream).corpora]
        read = [corpus for corpus in names if corpus in tokens and corpus not in plan.excluded]
        partly = []
        for corpus in read:
            used = [(a, b) for owner, a, b in ranges if corpus in leaves[owner].corpora]
            member = next(e for e in plan.stream(stream).corpora if e.corpus == corpus)
            whole = member.drawn >= member.rows
            if whole and _covers_an_epoch(used, plan.stream(stream).n):
                rows[corpus] = None
            else:
                partly.append(corpus)
        if partly:
            rows |= _distinct_rows(leaves, plan, stream, ranges, partly)
    return {
        corpus: CorpusTotal(
            records=records.distinct_records(corpus, read),
            rows=manifest.train_rows(corpus) if read is None else read.size,
            tokens=tokens[corpus],
            steps=len(steps[corpus]),
        )
        for corpus, read in sorted(rows.items())
    }


def _covers_an_epoch(ranges: Iterable[tuple[int, int]], n: int) -> bool:
    """Whether half-open ranges of positions hold all of some epoch of ``n``."""
    begin, end = 0, -1
    for start, stop in sorted(ranges):
        if start > end:
            begin = start
        end = max(end, stop)
        if (-(-begin // n) + 1) * n <= end:
            return True
    return False


def _distinct_rows(
    leaves: Sequence[Leaf],
    plan: BatchPlan,
    stream: str,
    ranges: Sequence[tuple[int, int, int]],
    corpora: Collection[str],
) -> dict[str, Rows]:
    """Corpus → its rows that the leaves' ranges of a stream read, ascending, each once."""
    found = {corpus: _Distinct() for corpus in corpora}
    for corpus, owners, read in read_ranges(plan, stream, ranges):
        if corpus not in found:
            continue
        bounds = _bounds(owners)
        used = np.array([corpus in leaves[owner].corpora for owner in owners[bounds]])
        if not used.all():  # a gate left the corpus out
            read = read[np.repeat(used, np.diff(bounds, append=owners.size))]
        found[corpus].add(read)
    return {corpus: each.rows for corpus, each in found.items() if each.rows.size}


class _Distinct:
    """Rows, each once."""

    def __init__(self) -> None:
        self._kept: Rows = np.empty(0, np.int64)
        self._new: list[Rows] = []
        self._waiting = 0

    def add(self, rows: Rows) -> None:
        self._new.append(rows)
        self._waiting += rows.size
        if self._waiting > max(_PENDING, self._kept.size):
            self._merge()

    @property
    def rows(self) -> Rows:
        """Ascending."""
        if self._new:
            self._merge()
        return self._kept

    def _merge(self) -> None:
        rows = np.concatenate([self._kept, *self._new])
        rows.sort()  # numpy's own `unique` hashes, which takes ten times as long here
        first = np.ones(rows.size, np.bool_)
        np.not_equal(rows[1:], rows[:-1], out=first[1:])
        self._kept = rows[first]
        self._new, self._waiting = [], 0


def _by_stream(steps: Sequence[Ranges]) -> dict[str, list[tuple[int, int, int]]]:
    """Stream → (number of the step, start, stop)."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for number, ranges in enumerate(steps):
        for stream, (start, stop) in ranges.items():
            found.setdefault(stream, []).append((number, start, stop))
    return found


def _bounds(owners: Rows) -> Rows:
    """Where a new owner begins, 0 included; ``owners`` ascend, and there is at least one."""
    return np.append(0, np.flatnonzero(np.diff(owners)) + 1)


def _sums(targets: Rows, bounds: Rows) -> list[int]:
    """The sum of each stretch, exact: a row may state up to 2**53 targets."""
    low = np.add.reduceat(targets & _LOW, bounds).tolist()
    high = np.add.reduceat(targets >> _HALF, bounds).tolist()
    return [(h << _HALF) + lo for h, lo in zip(high, low, strict=True)]
