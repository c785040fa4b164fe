"""Records that stand in two corpora are counted: exactly if equal, by estimate if nearly so."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.data import overlap
from govray.data.overlap import BANDS, Overlap, digests, overlaps
from govray.data.similarity.minhash import PASSAGE, passage_signatures
from govray.data.similarity.passage_index import CorpusPassages
from govray.data.similarity.shingles import shingles

VOCABULARY = [f"word{number}" for number in range(400)]


def hashed(contents: Sequence[bytes]) -> overlap.Digests:
    return digests(hashlib.sha256(each).digest() for each in contents)


def indexed(texts: Sequence[str]) -> CorpusPassages:
    return CorpusPassages(*passage_signatures([shingles(each.encode()) for each in texts], PASSAGE))


def text(seed: int, length: int = 160) -> str:
    drawn = random.Random(seed)
    return " ".join(drawn.choice(VOCABULARY) for _ in range(length))


def changed(original: str, words_changed: int) -> str:
    drawn, found = random.Random(7), original.split()
    for place in drawn.sample(range(len(found)), words_changed):
        found[place] = "another"
    return " ".join(found)


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.binary(max_size=1), max_size=6)))
def test_equal_records_are_counted_exactly(corpora: dict[str, list[bytes]]) -> None:
    found = overlaps({name: hashed(contents) for name, contents in corpora.items()})
    expected = []
    for first in sorted(corpora):
        for second in sorted(corpora):
            if first < second:
                one, other = corpora[first], corpora[second]
                equal = sum(each in other for each in one), sum(each in one for each in other)
                if any(equal):
                    expected.append(Overlap(first, second, equal, (0, 0)))
    assert found == expected


def near_records(first: CorpusPassages, second: CorpusPassages, *, least: float) -> tuple[int, int]:
    """How many records of each are near one of the other."""
    sizes = {name: int(each.owners.max()) + 1 for name, each in {"a": first, "b": second}.items()}
    records = {
        name: hashed([f"{name} {number}".encode() for number in range(size)])
        for name, size in sizes.items()
    }
    found = overlaps(records, {"a": first, "b": second}, least=least)
    return found[0].near if found else (0, 0)


def test_near_copies_are_found_and_other_texts_are_not() -> None:
    ours = [text(1), text(2), text(3)]
    theirs = [text(4), changed(text(2), 1), text(5), text(3), text(3)]
    assert near_records(indexed(ours), indexed(theirs), least=0.8) == (2, 3)
    # The control: of a text with every third word changed, no shingle is left.
    assert near_records(indexed([changed(text(2), 53)]), indexed(ours), least=0.1) == (0, 0)


def near_by_comparing_all(first: CorpusPassages, second: CorpusPassages, least: float) -> set[int]:
    """The records of ``first`` near one of ``second``: each passage with each, and no index."""
    found = set()
    for owner, one in zip(first.owners, first.signatures, strict=True):
        for other in second.signatures:
            equal = one == other
            agrees = equal.reshape(BANDS, -1).all(axis=1).any()
            if agrees and equal.mean() >= least:
                found.add(int(owner))
    return found


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), max_size=3),
        min_size=2,
        max_size=5,
    ),
    st.sampled_from([0.2, 0.5, 0.8, 1.0]),
)
@settings(max_examples=60)
def test_sorting_all_corpora_at_once_finds_what_comparing_all_passages_finds(
    drawn: list[list[tuple[int, int]]], least: float
) -> None:
    """Corpora of texts of which some are near: five texts, each with up to 40 words changed."""
    corpora = {
        name: [changed(text(seed, 150), times) for seed, times in texts]
        for name, texts in zip("abcde", drawn, strict=False)
    }
    records = {name: hashed([t.encode() for t in texts]) for name, texts in corpora.items()}
    passages = {name: indexed(texts) for name, texts in corpora.items()}
    expected = []
    for one, other in combinations(corpora, 2):
        counts: list[tuple[int, int]] = []
        equal = {
            (a, b): set(np.flatnonzero(np.isin(records[a], records[b])).tolist())
            for a, b in ((one, other), (other, one))
        }
        near = {
            (a, b): near_by_comparing_all(passages[a], passages[b], least) - equal[a, b]
            for a, b in equal
        }
        for kind in (equal, near):
            counts.append((len(kind[one, other]), len(kind[other, one])))
        if any(map(any, counts)):
            expected.append(Overlap(one, other, *counts))
    assert overlaps(records, passages, least=least) == expected
