"""The orders of an epoch: bijections by arithmetic, one for scalars and one for whole arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.governance.record import plan_rows
from govray.governance.record.row_order import (
    EpochOrder,
    RowOrder,
    WholeOrder,
    epoch_order,
    invert,
    mix,
    permute,
    round_keys,
    window_keys,
)

ZERO = "sha256:" + "00" * 32

keys = st.builds(round_keys, st.integers(0, 2**53 - 1), st.just(ZERO), st.integers(0, 1000))


@st.composite
def orders(draw: st.DrawFn, *, most: int = 300) -> EpochOrder:
    """Of blocks and windows of every kind: short last ones, windows that end within a block."""
    block = draw(st.integers(1, 9))
    return epoch_order(
        RowOrder(block=block, window=draw(st.integers(block, 40))),
        draw(st.integers(1, most)),
        seed=draw(st.integers(0, 2**53 - 1)),
        stream=ZERO,
        epoch=draw(st.integers(0, 1000)),
    )


def local(n: int, block: int, window: int, *, seed: int = 17, epoch: int = 0) -> EpochOrder:
    sizes = RowOrder(block=block, window=window)
    return epoch_order(sizes, n, seed=seed, stream=ZERO, epoch=epoch)


@given(keys, st.integers(1, 300))
def test_permute_is_a_bijection(keys: tuple[int, ...], n: int) -> None:
    assert sorted(permute(keys, n, i) for i in range(n)) == list(range(n))


@given(keys, st.integers(1, 2**60), st.data())
def test_invert_inverts(keys: tuple[int, ...], n: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, n - 1))
    assert invert(keys, n, permute(keys, n, i)) == i
    assert permute(keys, n, invert(keys, n, i)) == i


def test_golden_vectors() -> None:
    """These numbers leave the process: shards are read by them and ledgers signed over them."""
    found = round_keys(17, ZERO, 0)
    assert [hex(key) for key in found] == [
        "0x10eef4af250431c",
        "0x9c8431a68ae5a788",
        "0x34a67f266bb44f70",
        "0x5f958f4196de7bc5",
        "0x5398c25c80c5d51b",
        "0x133000b9e3cb9b7f",
        "0x7fdba1b0703d6b87",
        "0x3c08536af23fc28b",
    ]
    # The published first outputs of splitmix64 from state 0 are mix() of the golden-ratio steps.
    step = 0x9E3779B97F4A7C15
    assert [hex(mix(step * k % 2**64)) for k in (1, 2, 3)] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]
    assert [permute(found, 10, i) for i in range(10)] == [2, 1, 6, 9, 7, 0, 5, 3, 8, 4]
    assert [permute(found, 1000, i) for i in range(8)] == [43, 572, 31, 307, 418, 304, 94, 623]
    assert [permute(found, 10**12, i) for i in range(4)] == [
        852652697834,
        305525513084,
        744308991488,
        555822302617,
    ]


def test_arithmetic_is_that_of_uint64_arrays() -> None:
    values = np.random.default_rng(5).integers(0, 2**64, 1000, dtype=np.uint64)
    z = values.copy()
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    assert [mix(int(v)) for v in values] == [int(v) for v in z]


@given(orders())
def test_an_order_is_a_bijection(order: EpochOrder) -> None:
    assert sorted(order.row(i) for i in range(order.n)) == list(range(order.n))


@given(orders(most=2**53 - 1), st.data())
def test_an_order_is_inverted(order: EpochOrder, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, order.n - 1))
    assert order.offset(order.row(i)) == i
    assert order.row(order.offset(i)) == i


@given(orders())
def test_the_local_order_is_what_it_says(order: EpochOrder) -> None:
    """The definition as lists: permuted blocks, one after another, permuted in windows."""
    if isinstance(order, WholeOrder):
        return
    cut = [range(order.n)[start : start + order.block] for start in range(0, order.n, order.block)]
    sequence = [row for i in range(len(cut)) for row in cut[permute(order.block_keys, len(cut), i)]]
    expected = []
    for number, start in enumerate(range(0, order.n, order.window)):
        window = sequence[start : start + order.window]
        found = window_keys(order.window_states, number)
        expected += [window[permute(found, len(window), i)] for i in range(len(window))]
    assert [order.row(i) for i in range(order.n)] == expected


@given(orders(most=2**53 - 1) | orders(), st.sampled_from([1, 3, 256]), st.data())
def test_the_array_order_is_the_scalar_one(
    order: EpochOrder, run: int, data: st.DataObject
) -> None:
    offsets = data.draw(st.lists(st.integers(0, order.n - 1), max_size=40))
    if data.draw(st.booleans()):
        offsets.sort()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_rows, "_RUN", run)
        patch.setattr(plan_rows, "_IN_CACHE", data.draw(st.sampled_from([1, 7, 8192])))
        found = plan_rows.order_rows(order, np.array(offsets, dtype=np.uint64))
        back = plan_rows.order_offsets(order, found)
    assert found.tolist() == [order.row(i) for i in offsets]
    assert back.tolist() == offsets


def test_golden_vectors_of_the_local_order() -> None:
    """These numbers leave the process, as those of the network do."""
    assert [hex(key) for key in round_keys(17, ZERO, 0, "blocks")[:2]] == [
        "0x906d81231be2ba28",
        "0xed34974e54af000e",
    ]
    assert [hex(key) for key in round_keys(17, ZERO, 0, "windows")[:2]] == [
        "0x7b41d69887409659",
        "0x4f1252670cbf6269",
    ]
    # The published first outputs of splitmix64 from state 0.
    assert [hex(window_keys([0], k)[0]) for k in range(3)] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]
    found = [local(14, 3, 6).row(i) for i in range(14)]
    assert found == [4, 12, 3, 0, 13, 5, 1, 9, 10, 6, 11, 2, 8, 7]
    large = local(10**12, 126, 8190, epoch=3)
    assert [large.row(i) for i in (0, 1, 8190, 10**12 - 1)] == [
        434163030367,
        632962304628,
        136645918304,
        156769724227,
    ]
