"""Records that stand in two corpora are counted: exactly if equal, by estimate if nearly so."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from govray.data import overlap
from govray.data.near_copies import PassageIndex, passages, signatures, words
from govray.data.overlap import Overlap, digests, near_records, overlaps

VOCABULARY = [f"word{number}" for number in range(400)]


def hashed(contents: Sequence[bytes]) -> overlap.Digests:
    return digests(hashlib.sha256(each).digest() for each in contents)


def indexed(texts: Sequence[str]) -> PassageIndex:
    cut = [
        (owner, each)
        for owner, text in enumerate(texts)
        for each in passages(words(text.encode()), 128)
    ]
    owners = np.array([owner for owner, _ in cut], dtype=np.int64)
    return PassageIndex(owners, signatures([each for _, each in cut]))


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


def test_a_hash_that_ends_in_zeros_is_a_hash() -> None:
    """numpy cuts zeros off the end of bytes."""
    assert not overlap.equal_records(digests([bytes(32)]), digests([bytes(31) + b"\1"])).size
    assert overlap.equal_records(digests([bytes(32)]), digests([bytes(32)])).tolist() == [0]


def test_near_copies_are_found_and_other_texts_are_not() -> None:
    ours = [text(1), text(2), text(3)]
    theirs = [text(4), changed(text(2), 1), text(5), text(3)]
    assert near_records(indexed(ours), indexed(theirs), least=0.8).tolist() == [1, 2]
    assert near_records(indexed(theirs), indexed(ours), least=0.8).tolist() == [1, 3]
    # The control: of a text with every third word changed, no shingle is left.
    assert not near_records(indexed([changed(text(2), 53)]), indexed(ours), least=0.1).size


def test_an_equal_record_is_not_near_too() -> None:
    ours, theirs = [text(1), text(2)], [text(2), changed(text(1), 1)]
    found = overlaps(
        {
            "a": hashed([each.encode() for each in ours]),
            "b": hashed([each.encode() for each in theirs]),
        },
        {"a": indexed(ours), "b": indexed(theirs)},
    )
    assert found == [Overlap("a", "b", (1, 1), (1, 1))]


def test_text_that_stands_everywhere_is_looked_at_a_bounded_number_of_times() -> None:
    """Two thousand equal passages on each side: four million pairs, if each were compared."""
    notice = text(9, 128)
    both = indexed([notice] * 2000)
    assert near_records(both, both, least=0.9).size == 2000


def test_corpora_without_records_or_passages_share_nothing() -> None:
    nothing = indexed(["short"])
    assert not overlaps({"a": hashed([])}, {"a": nothing})
    assert not overlaps({"a": hashed([b"x"]), "b": hashed([])}, {"a": nothing, "b": nothing})
