"""Record commitments: golden values, what opens a leaf, and what no one can test without it."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Refused
from govray.governance.formats import canonical_json, merkle
from govray.governance.policy.credential import Records
from govray.governance.policy.record_commitment import (
    RecordOpening,
    commitment,
    entry,
    leaf,
    opening,
    root,
)
from tests.support.table import each_row

SECRET = bytes(range(32))
RECORD = hashlib.sha256(b"a record\n").digest()


def records_of(hashes: list[bytes]) -> Records:
    entries = [entry(each, SECRET) for each in hashes]
    return Records(root=root(entries), count=len(entries), commitment=commitment(SECRET))


def hashes(count: int) -> list[bytes]:
    return [hashlib.sha256(bytes([number])).digest() for number in range(count)]


def opened(index: int = 1, count: int = 3) -> RecordOpening:
    made = hashes(count)
    return RecordOpening.make("notes", SECRET, made, index, records_of(made))


def test_golden_values() -> None:
    """Computed with `openssl dgst -sha256 -mac HMAC` and `sha256sum` from the module's words."""
    assert (
        commitment(SECRET)
        == "sha256:374de051c7b3aee7936ac51c3d07b4be93deb089c33c8deb32c66e1efb209dfc"
    )
    assert (
        opening(SECRET, RECORD).hex()
        == "166d887e4584bb05df5144d0b8ff946084ee121892a3739e85f5ee374b1c4194"
    )
    assert (
        entry(RECORD, SECRET).hex()
        == "816669239181e32816625cca05238b2e29cc291228d2ef1ba4b291b15c4f87fb"
    )


def test_the_tree_is_that_of_rfc_9162_over_openings_and_hashes() -> None:
    made = hashes(5)
    leaves = [opening(SECRET, each) + each for each in made]
    assert records_of(made).root == "sha256:" + merkle.root(leaves).hex()


@given(st.integers(1, 40), st.data())
def test_an_opening_shows_its_record_and_survives_its_file(count: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, count - 1))
    made = opened(index, count)
    made.verify(records_of(hashes(count)), where="opening")
    value = canonical_json.parse_canonical(made.encode())
    assert RecordOpening.from_json(value) == made


@each_row(
    ("change", "says"),
    [
        ({"record": "00" * 32}, "the proof does not hold"),
        ({"opening": "00" * 32}, "the proof does not hold"),
        ({"index": 2}, "the proof does not hold"),
        ({"index": 3}, "has no record 3"),
        ({"path": ()}, "too few hashes"),
        ({"path": ("00" * 32,) * 3}, "too many hashes"),
        ({"root": "sha256:" + "0" * 64}, "another version"),
        ({"count": 4}, "another version"),
    ],
)
def test_a_changed_opening_shows_nothing(change: dict[str, object], says: str) -> None:
    stated = records_of(hashes(3))
    changed = opened().model_copy(update=change)
    with pytest.raises(Refused, match=says) as refused:
        changed.verify(stated, where="x.json")
    assert "x.json" in str(refused.value)


def test_a_guess_cannot_be_tested_without_its_opening() -> None:
    """With the leaves, the root, the commitment, another record's opening and the record itself.

    What is known is fed to every function that takes a secret or an opening. The control: with the
    opening, the same comparison succeeds.
    """
    made = hashes(8)
    stated = records_of(made)
    leaves = {entry(each, SECRET) for each in made}
    guess, another = made[3], opened(5, 8)
    known = [
        *leaves,
        guess,
        bytes(32),
        bytes.fromhex(stated.root.removeprefix("sha256:")),
        bytes.fromhex(str(stated.commitment).removeprefix("sha256:")),
        bytes.fromhex(another.opening),
        *(bytes.fromhex(each) for each in another.path),
    ]
    assert guess not in leaves
    assert merkle.leaf_hash(guess) not in leaves
    for each in known:
        assert entry(guess, each) not in leaves
        assert leaf(each, guess) not in leaves
        tried = another.model_copy(
            update={"record": guess.hex(), "opening": each.hex(), "index": 3}
        )
        with pytest.raises(Refused):
            tried.verify(stated, where="guess")
    assert leaf(opening(SECRET, guess), guess) in leaves
    opened(3, 8).verify(stated, where="control")


def test_corpora_have_different_leaves_of_one_record() -> None:
    assert entry(RECORD, SECRET) != entry(RECORD, SECRET[::-1])
    assert entry(RECORD, SECRET) == entry(RECORD, SECRET)
