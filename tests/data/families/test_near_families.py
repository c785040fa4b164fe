"""Families: near copies are found, others are not, whatever the order and the size of blocks."""

from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from govray.data.families import near_families
from govray.data.families.near_families import Bands, Places, bands, families

WORDS = [f"word{number}" for number in range(4000)]


def text(seed: int, length: int = 200) -> list[str]:
    return random.Random(seed).choices(WORDS, k=length)


def edited(words: list[str], seed: int, edits: int) -> list[str]:
    """The same text with some words replaced: each takes up to five shingles with it."""
    draw = random.Random(seed)
    found = list(words)
    for place in draw.sample(range(len(found)), edits):
        found[place] = draw.choice(WORDS)
    return found


def content(words: list[str]) -> bytes:
    return " ".join(words).encode()


def joined(found: Bands) -> Places:
    """The families, in memory."""
    with tempfile.TemporaryDirectory() as folder:
        return np.array(families(found, Path(folder)))


def grouped(contents: list[bytes]) -> list[list[int]]:
    """The families of more than one record, by place."""
    last = joined(bands(contents))
    return [
        np.flatnonzero(last == each).tolist() for each in np.unique(last) if sum(last == each) > 1
    ]


def test_near_copies_are_one_family_and_other_texts_are_none() -> None:
    originals = [text(seed) for seed in range(40)]
    contents = [content(each) for each in originals]
    contents += [content(edited(originals[seed], 100 + seed, 6)) for seed in range(10)]
    assert sorted(grouped(contents)) == [[seed, 40 + seed] for seed in range(10)]


def test_a_family_is_what_near_records_connect() -> None:
    versions = [text(1)]
    for step in range(12):
        versions.append(edited(versions[-1], step, 4))
    contents = [content(each) for each in versions]
    assert grouped(contents) == [list(range(13))]
    # The first and the last alone are not near.
    assert grouped([contents[0], contents[-1]]) == []


def test_equal_records_are_one_family_whatever_stands_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same = content(text(1))
    others = [content(edited(text(1), seed, 30)) for seed in range(30)]
    contents = [same, *others[:15], same, *others[15:], same]
    last = joined(bands(contents))
    assert last[0] == last[16] == last[32]
    # Even where nothing but equal texts is near.
    monkeypatch.setattr(near_families, "SIMILAR", 1.0)
    assert grouped(contents) == [[0, 16, 32]]
    # Of few words, and of no text.
    assert grouped([b"a b", b"a c", b"\xff\x00", b"a b", b"\xff\x00"]) == [[0, 3], [2, 4]]


def test_families_follow_from_bands_alone_in_any_block_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contents = [content(edited(text(seed % 7), seed, 5)) for seed in range(60)]
    found = bands(contents)
    whole = joined(found)
    assert len(np.unique(whole)) == 7
    monkeypatch.setattr(near_families, "_AT_ONCE", 3)
    monkeypatch.setattr(near_families, "_BUCKET", 11)
    assert (joined(found) == whole).all()
    order = np.arange(60)[::-1].copy()
    backwards = joined(np.ascontiguousarray(found[:, order]))
    assert all(
        (whole[a] == whole[b]) == (backwards[59 - a] == backwards[59 - b])
        for a, b in pairwise(range(60))
    )


def test_the_rule_that_manifests_state() -> None:
    """Bands leave the process by what they decide: another rule is another statement."""
    assert near_families.RULE.to_json() == {
        "method": "rensa.RMinHash 2",
        "text": "govray.dev/compared-text/v1",
        "values": 64,
        "bands": 16,
        "seed": 17,
        "leastShingles": 8,
        "similar": 0.5,
    }
    golden = bands([content(text(1))])
    assert hex(int(golden[0, 0])) == "0xa4867bbee5b80b3"
