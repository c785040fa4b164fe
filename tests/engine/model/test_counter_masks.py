"""Masks by counter: the published generator, and what dropout needs of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.engine.model import keyed_dropout
from govray.engine.model.keyed_dropout import kept, outputs, signed
from govray.engine.steps.keyed_seed import mask_seed

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
    monkeypatch.setitem(keyed_dropout._WORDS_AT_ONCE, "cpu", at_once)
    assert torch.equal(kept(keys(5), 333, 0.5), whole)
