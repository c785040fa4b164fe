"""The batch plan's orders and the rows that it reads, over whole arrays.

The same arithmetic as in ``govray.governance.record.row_order``, which is the definition; here in
numpy's ``uint64``, whose arithmetic is modulo 2**64 as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from govray.governance.formats.record_columns import Rows
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.row_order import (
    GAMMA,
    EpochOrder,
    LocalOrder,
    WholeOrder,
    half_width,
    window_keys,
)

Indices: TypeAlias = npt.NDArray[np.uint64]

Walked = TypeVar("Walked", Indices, Rows)
Round = TypeVar("Round")
"""What one round of the network mixes by: a key, or a table."""

_AT_ONCE = 1 << 16
"""Positions of one piece: some megabytes, and the cost of a call does not show."""
_IN_CACHE = 1 << 13
"""Indices that are permuted together: what is computed on the way stays in the processor."""
_RUN = 256
"""Indices of one window, on average, from which on a window gets a pass of its own."""


def permute(keys: Sequence[int], n: int, indices: npt.NDArray[np.integer]) -> Indices:
    """``row_order.permute(keys, n, i)`` for each i of ``indices`` (any shape), same shape."""
    if indices.size and (indices.min() < 0 or indices.max() >= n):
        raise ValueError(f"an index is outside [0, {n})")
    values = indices.astype(np.uint64).ravel()
    return _permute(keys, n, values).reshape(indices.shape)


def order_rows(order: EpochOrder, offsets: Indices) -> Rows:
    """``order.row(i)`` for each i of ``offsets`` (any shape), same shape."""
    if isinstance(order, WholeOrder):
        return permute(order.keys, order.n, offsets).astype(np.int64)
    if offsets.size and offsets.max() >= order.n:
        raise ValueError(f"an offset is outside [0, {order.n})")
    return _local_rows(order, offsets.ravel()).reshape(offsets.shape)


def stream_rows(plan: BatchPlan, stream_id: str, positions: Indices) -> Rows:
    """`BatchPlan.row` of each of these positions, any shape, same shape."""
    stream = plan.stream(stream_id)
    if not positions.size:
        return positions.astype(np.int64)
    if (highest := int(positions.max())) >= stream.length:
        raise ValueError(f"position {highest} is outside [0, {stream.length})")
    first = int(positions.min()) // stream.n
    if highest // stream.n == first:  # as nearly everywhere
        offsets = positions - np.uint64(first * stream.n)
        return order_rows(plan.epoch_order(stream_id, first), offsets)
    epochs, offsets = np.divmod(positions, np.uint64(stream.n))
    rows = np.empty(positions.shape, np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        rows[here] = order_rows(plan.epoch_order(stream_id, int(epoch)), offsets[here])
    return rows


def corpus_rows(plan: BatchPlan, stream_id: str, positions: Indices) -> tuple[Rows, Rows]:
    """Which corpus of the stream each position reads, as its number there, and which row of it.

    Tombstones are among them.

    Args:
        positions: ``[positions]``, of the stream.
    """
    corpora = plan.stream(stream_id).corpora
    rows = stream_rows(plan, stream_id, positions)
    counts = np.array([each.drawn for each in corpora], np.int64)
    stops = np.cumsum(counts)
    members = np.searchsorted(stops, rows, side="right")
    found = rows - (stops - counts)[members]
    for number, member in enumerate(corpora):
        if member.draws is not None:
            here = members == number
            epochs = positions[here].astype(np.int64) // plan.stream(stream_id).n
            found[here] = (epochs * member.draws + found[here]) % member.rows
    return members, found


def order_offsets(order: EpochOrder, rows: Rows) -> Rows:
    """``order.offset(r)`` for each r of ``rows`` ``[rows]``, same shape."""
    if rows.size and (rows.min() < 0 or rows.max() >= order.n):
        raise ValueError(f"a row is outside [0, {order.n})")
    values = rows.astype(np.uint64)
    if isinstance(order, WholeOrder):
        return _permute(order.keys, order.n, values, backward=True).astype(np.int64)
    blocks, places = np.divmod(values, np.uint64(order.block))
    places += _permute(order.block_keys, order.blocks, blocks, backward=True) * np.uint64(
        order.block
    )
    places[places >= np.uint64(order.gap)] -= np.uint64(order.missing)
    return _by_window(order, places, backward=True).astype(np.int64)


def read_before(plan: BatchPlan, corpus: str, rows: Rows, stop: int) -> npt.NDArray[np.bool_]:
    """Which of a corpus's ``rows`` its stream reads for the first time before position ``stop``.

    Of a row that an epoch reads several times, the draw of its own number counts as the first.
    """
    stream = plan.stream_of(corpus)
    assert stream is not None
    number = [each.corpus for each in stream.corpora].index(corpus)
    drawn = stream.corpora[number].drawn
    start = sum(each.drawn for each in stream.corpora[:number])
    epoch, within = divmod(min(stop, stream.length), stream.n)
    epochs, draws = np.divmod(rows, drawn)
    found: npt.NDArray[np.bool_] = epochs < epoch
    if within and (here := epochs == epoch).any():
        order = plan.epoch_order(stream.id, epoch)
        found[here] = order_offsets(order, start + draws[here]) < within
    return found


def range_positions(starts: Rows, stops: Rows) -> Indices:
    """The positions of half-open ranges ``[ranges]``, one after another."""
    lengths = stops - starts
    before = np.cumsum(lengths) - lengths
    positions: Rows = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return positions.astype(np.uint64)


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
    for piece in _pieces(ranges):
        numbers, starts, stops = np.array(piece, np.int64).T
        owners = np.repeat(numbers, stops - starts)
        members, rows = corpus_rows(plan, stream_id, range_positions(starts, stops))
        order = np.argsort(members, kind="stable")
        bounds = np.flatnonzero(np.diff(members[order])) + 1
        for here in np.split(order, bounds):
            corpus = corpora[int(members[here[0]])].corpus
            if corpus not in plan.excluded:
                yield corpus, owners[here], rows[here]


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


def _local_rows(order: LocalOrder, offsets: Indices) -> Rows:
    """`order_rows` of a local order; ``offsets`` are ``[offsets]``."""
    places = _by_window(order, offsets)
    places[places >= np.uint64(order.gap)] += np.uint64(order.missing)
    blocks = places // np.uint64(order.block)
    places -= blocks * np.uint64(order.block)
    places += _permuted_blocks(order, blocks) * np.uint64(order.block)
    return places.astype(np.int64)


def _by_window(order: LocalOrder, offsets: Indices, *, backward: bool = False) -> Indices:
    """Where each place of the epoch stands once the rows of its window are permuted."""
    size = np.uint64(order.window)
    windows = offsets // size
    starts = windows * size
    places = offsets - starts
    whole, rest = divmod(order.n, order.window)
    last = windows == np.uint64(whole)  # the last window of an epoch may be shorter
    for here, rows in ((~last, order.window), (last, rest)):
        places[here] = _in_windows(order, rows, windows[here], places[here], backward)
    places += starts
    return places


def _in_windows(
    order: LocalOrder, rows: int, windows: Indices, places: Indices, backward: bool
) -> Indices:
    """The image of each place in its window; all windows, by their numbers, have ``rows`` rows."""
    found = np.empty_like(places)
    edges = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), places.size]
    if len(edges) * _RUN <= places.size:  # positions that follow each other, as nearly everywhere
        for start, stop in pairwise(edges):
            keys = window_keys(order.window_states, int(windows[start]))
            found[start:stop] = _permute(keys, rows, places[start:stop], backward=backward)
        return found
    for at in range(0, places.size, _IN_CACHE):
        here = slice(at, at + _IN_CACHE)
        moves = (windows[here] + np.uint64(1)) * np.uint64(GAMMA)
        each = [mix_all(moves + np.uint64(state)) for state in order.window_states]
        network = _network(_evaluate, each, half_width(rows), backward)
        found[here] = _walk(network, rows, places[here])
    return found


def _permuted_blocks(order: LocalOrder, blocks: Indices) -> Indices:
    """The image of each block; neighbouring offsets share blocks, which are then computed once."""
    if not blocks.size:
        return blocks
    first, last = int(blocks.min()), int(blocks.max())
    if last - first >= blocks.size:
        return permute(order.block_keys, order.blocks, blocks)
    together = permute(order.block_keys, order.blocks, np.arange(first, last + 1))
    return together[(blocks - np.uint64(first)).astype(np.int64)]


def _permute(keys: Sequence[int], n: int, values: Indices, *, backward: bool = False) -> Indices:
    """`permute` of ``[values]`` that are below ``n``; ``backward``: `row_order.invert`."""
    rounds = [np.uint64(key) for key in keys]
    half = half_width(n)
    found = np.empty_like(values)
    if 1 << half <= values.size:  # each value of a half comes often: its mix is looked up
        halves = np.arange(1 << half, dtype=np.uint64)
        mask = np.uint64((1 << half) - 1)
        tables = [(mix_all(halves ^ key) & mask).astype(np.int64) for key in rounds]
        looked_up = _network(_looked_up, tables, half, backward)
        for at in range(0, values.size, _IN_CACHE):
            some = values[at : at + _IN_CACHE].astype(np.int64)
            found[at : at + _IN_CACHE] = _walk(looked_up, n, some)
        return found
    network = _network(_evaluate, rounds, half, backward)
    for at in range(0, values.size, _IN_CACHE):
        piece = values[at : at + _IN_CACHE]
        found[at : at + _IN_CACHE] = _walk(network, n, piece)
    return found


def _network(
    passed: Callable[[Sequence[Round], int, Walked, slice | Rows], Walked],
    rounds: Sequence[Round],
    half: int,
    backward: bool,
) -> Callable[[Walked, slice | Rows], Walked]:
    """One pass of the network. Backward it is the same on swapped halves, last round first."""
    if not backward:
        return partial(passed, rounds, half)

    def swapped(values: Any) -> Any:
        return values >> half | (values & ((1 << half) - 1)) << half

    return lambda values, here: swapped(passed(rounds[::-1], half, swapped(values), here))


def _walk(network: Callable[[Walked, slice | Rows], Walked], n: int, values: Walked) -> Walked:
    """The images of ``values`` under a network, walked until they are below ``n``."""
    found = network(values, slice(None))
    # Walk on only where the walk has not come back below n.
    walking = np.flatnonzero(found >= n)
    while walking.size:
        found[walking] = network(found[walking], walking)
        walking = walking[found[walking] >= n]
    return found


def _looked_up(tables: Sequence[Rows], half: int, values: Rows, _: slice | Rows) -> Rows:
    """One pass of the network over ``[values]``; a table has the mix of each half, by round."""
    left, right = values >> half, values & ((1 << half) - 1)
    for table in tables:
        left, right = right, left ^ table[right]
    return (left << half) | right


def _evaluate(
    rounds: Sequence[np.uint64 | Indices], half: int, values: Indices, here: slice | Rows
) -> Indices:
    """The same by arithmetic; a round's key is one for all values, or one for each of them."""
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for keys in rounds:
        key = keys if isinstance(keys, np.uint64) else keys[here]
        left, right = right, left ^ (mix_all(right ^ key) & mask)
    return (left << bits) | right


def mix_all(values: Indices) -> Indices:
    """Splitmix64's finaliser, as ``row_order.mix``."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
