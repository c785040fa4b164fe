"""Signatures: those of the passages' sets, whatever text they are cut from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rensa import RMinHash

from govray.data.similarity import minhash
from govray.data.similarity.minhash import (
    PASSAGE,
    PERMUTATIONS,
    SEED,
    passage_signatures,
    passage_starts,
)
from govray.data.similarity.near_copies import STRIDE

texts = st.lists(st.sampled_from("abcdef"), max_size=400)


def passages(text: list[str], stride: int) -> list[frozenset[str]]:
    return [frozenset(text[at : at + PASSAGE]) for at in passage_starts(len(text), stride)]


@given(st.lists(texts, max_size=4), st.sampled_from([PASSAGE, STRIDE]), st.sampled_from([1, 3, 99]))
@settings(max_examples=60)
def test_signatures_are_those_of_the_passages_sets(
    several: list[list[str]], stride: int, together: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minhash, "_TOGETHER", together)
        owners, found = passage_signatures(several, stride)
    sets = [(i, each) for i, text in enumerate(several) for each in passages(text, stride)]
    made = RMinHash.digests_from_token_sets([sorted(s) for _, s in sets], PERMUTATIONS, SEED)
    assert owners.tolist() == [i for i, _ in sets]
    assert found.tolist() == made


@given(texts)
@settings(max_examples=50)
def test_passages_cover_every_shingle_within_them(text: list[str]) -> None:
    assert set().union(*passages(text, STRIDE)) == set(text)
    assert all(passages(text, PASSAGE))


def test_golden_numbers() -> None:
    """An index leaves the process: another signature is another version of it."""
    _, found = passage_signatures([[f"shingle{number}" for number in range(40)]], PASSAGE)
    assert found[0, :4].tolist() == GOLDEN
    assert found.dtype == np.uint32


GOLDEN = [1221144320, 1960205938, 1909909883, 1454695936]
