"""Masks by counter: the published generator, and what dropout needs of it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.engine.model import counter_masks
from govray.engine.model.counter_masks import kept, mix, outputs, signed
from govray.engine.steps.keyed_seed import mask_seed
from tests.support.table import each_row

LANE = (1 << 64) - 1
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]
"""What splitmix64.c gives from the seed 1234567, as published for Rosetta Code's task
"Pseudo-random numbers/Splitmix64"."""


def by_definition(key: int, place: int) -> int:
    """Vigna's splitmix64.c in Python's integers: output ``place``, counted from 0."""
    word = (key + (place + 1) * 0x9E3779B97F4A7C15) & LANE
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & LANE
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & LANE
    return word ^ (word >> 31)


def keys(count: int, start: int = 0) -> torch.Tensor:
    return torch.tensor([signed(mask_seed("test", n)) for n in range(start, start + count)])


def test_the_published_vectors():
    found = outputs(torch.tensor([1234567]), 0, 5)[0].tolist()
    assert [each & LANE for each in found] == PUBLISHED


@given(key=st.integers(0, LANE), place=st.integers(0, 1 << 40))
@settings(max_examples=60)
def test_tensors_compute_what_the_definition_says(key, place):
    found = outputs(torch.tensor([signed(key)]), place, place + 1)
    assert found.item() & LANE == by_definition(key, place)


def test_an_element_is_dropped_by_its_word_alone():
    """The rule of the module, element by element: also for an odd number of them."""
    p, elements = 0.3, 9
    found = kept(keys(2), elements, p)
    for row, key in enumerate(keys(2).tolist()):
        for element in range(elements):
            word = by_definition(key & LANE, element // 2) >> (32 * (element % 2)) & 0xFFFFFFFF
            number = word - (1 << 32) if word >= 1 << 31 else word
            assert bool(found[row, element]) == (number >= round(p * 2**32) - 2**31)


@pytest.mark.parametrize("at_once", [1, 7, 64, 1 << 20])
def test_chunks_change_nothing(monkeypatch, at_once):
    whole = kept(keys(5), 333, 0.5)
    monkeypatch.setitem(counter_masks._WORDS_AT_ONCE, "cpu", at_once)
    assert torch.equal(kept(keys(5), 333, 0.5), whole)


def test_a_row_is_the_same_beside_any_others():
    assert torch.equal(kept(keys(8), 100, 0.5)[3:5], kept(keys(2, 3), 100, 0.5))


@each_row("p", [0.01, 0.1, 0.5, 0.9])
def test_the_share_dropped_is_p_in_all_and_in_each_row(p):
    rows, elements = 256, 4096
    dropped = ~kept(keys(rows), elements, p)
    spread = math.sqrt(p * (1 - p) / elements)
    each = dropped.double().mean(1)
    assert abs(float(each.mean()) - p) < 5 * spread / math.sqrt(rows)
    assert float(((each - p).abs() / spread).max()) < 5
    # The variance of the rows' shares is binomial: rows are neither alike nor balanced.
    assert float(each.var()) / spread**2 == pytest.approx(1, abs=0.5)


@each_row("lag", [1, 2, 3, 64, 200])
def test_neighbours_and_rows_are_uncorrelated(lag):
    values = kept(keys(256), 4096, 0.5).double() - 0.5
    count = values.numel()
    along = (values[:, lag:] * values[:, :-lag]).mean() * 4
    across = (values * values.roll(lag, 0)).mean() * 4
    assert abs(float(along)) < 5 / math.sqrt(count - 256 * lag)
    assert abs(float(across)) < 5 / math.sqrt(count)


def test_keys_that_differ_in_one_bit_share_no_mask():
    """Layer keys are mixed with row keys before use, so this is the hardest case."""
    one = torch.tensor([signed(mask_seed("row"))])
    flipped = one ^ torch.tensor([signed(1 << bit) for bit in range(64)])
    base, others = kept(mix(one.clone()), 4096, 0.5), kept(mix(flipped), 4096, 0.5)
    shared = (base == others).double().mean(1)
    assert float((shared - 0.5).abs().max()) < 5 * 0.5 / 64


@pytest.mark.parametrize(("p", "share"), [(0.0, 1.0), (1.0, 0.0)])
def test_the_ends_of_p(p, share):
    assert float(kept(keys(4), 1000, p).double().mean()) == share
