"""The batch plan's permutation and the rows that it reads, over whole arrays.

The same network, round keys and cycle walking as ``govray.governance.record.batch_plan.permute``,
which is the definition; here in numpy's ``uint64``, whose arithmetic is modulo 2**64 as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from govray.governance.formats.record_columns import Rows
from govray.governance.record.batch_plan import BatchPlan, half_width

Indices: TypeAlias = npt.NDArray[np.uint64]

_AT_ONCE = 1 << 16
"""Positions of one piece: some megabytes, and the cost of a call does not show."""


def permute(keys: Sequence[int], n: int, indices: npt.NDArray[np.integer]) -> Indices:
    """``batch_plan.permute(keys, n, i)`` for each i of ``indices`` (any shape), same shape.

    Raises:
        ValueError: an index is outside ``[0, n)``.
    """
    if indices.size and (indices.min() < 0 or indices.max() >= n):
        raise ValueError(f"an index is outside [0, {n})")
    values = indices.astype(np.uint64).ravel()
    half = np.uint64(half_width(n))
    mask = np.uint64((1 << int(half)) - 1)
    rounds = [np.uint64(key) for key in keys]
    # Walk on only where the walk has not come back below n.
    walking = np.arange(values.size)
    while walking.size:
        left, right = values[walking] >> half, values[walking] & mask
        for key in rounds:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        values[walking] = (left << half) | right
        walking = walking[values[walking] >= n]
    return values.reshape(indices.shape)


def stream_rows(plan: BatchPlan, stream_id: str, positions: Indices) -> Rows:
    """`BatchPlan.row` of each of these positions, any shape, same shape.

    Raises:
        ValueError: A position is behind the stream's last epoch.
    """
    stream = plan.stream(stream_id)
    if not positions.size:
        return positions.astype(np.int64)
    if (highest := int(positions.max())) >= stream.length:
        raise ValueError(f"position {highest} is outside [0, {stream.length})")
    epochs, offsets = np.divmod(positions, np.uint64(stream.n))
    rows = np.empty(positions.shape, np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        rows[here] = permute(plan.epoch_keys(stream_id, int(epoch)), stream.n, offsets[here])
    return rows


def read_ranges(
    plan: BatchPlan, stream_id: str, ranges: Iterable[tuple[int, int, int]]
) -> Iterator[tuple[str, Rows, Rows]]:
    """What ranges of a stream's positions read, in pieces of bounded memory.

    Args:
        ranges: (Owner, start, stop): any number that ascends, and its half-open range.

    Yields:
        Corpus, owners and rows in the corpus, one of each for every position that reads it. Owners
        ascend within a piece. Tombstones are left out.
    """
    corpora = plan.stream(stream_id).corpora
    stops = np.cumsum([each.rows for each in corpora])
    for piece in _pieces(ranges):
        numbers, starts, ends = np.array(piece, np.int64).T
        lengths = ends - starts
        owners = np.repeat(numbers, lengths)
        before = np.cumsum(lengths) - lengths
        positions = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
        rows = stream_rows(plan, stream_id, positions.astype(np.uint64))
        members = np.searchsorted(stops, rows, side="right")
        order = np.argsort(members, kind="stable")
        bounds = np.flatnonzero(np.diff(members[order])) + 1
        for here in np.split(order, bounds):
            member = int(members[here[0]])
            corpus = corpora[member]
            if corpus.corpus not in plan.excluded:
                yield corpus.corpus, owners[here], rows[here] - (stops[member] - corpus.rows)


def _pieces(ranges: Iterable[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """The same ranges, cut where a piece is full; empty ones are left out."""
    piece: list[tuple[int, int, int]] = []
    room = _AT_ONCE
    for owner, start, stop in ranges:
        while stop - start >= room:
            yield [*piece, (owner, start, start + room)]
            start += room
            piece, room = [], _AT_ONCE
        if start < stop:
            piece.append((owner, start, stop))
            room -= stop - start
    if piece:
        yield piece


def _mix(values: Indices) -> Indices:
    """Splitmix64's finaliser, as ``batch_plan.mix``."""
    values = values ^ (values >> np.uint64(30))
    values = values * np.uint64(0xBF58476D1CE4E5B9)
    values = values ^ (values >> np.uint64(27))
    values = values * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
