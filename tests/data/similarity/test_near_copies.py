"""Near copies: MinHash against brute force, exact numbers, and the records that are meant."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from govray.data.corpus import build
from govray.data.similarity.minhash import PASSAGE, in_bands, passage_signatures
from govray.data.similarity.near_copies import STRIDE, Near, near
from govray.data.similarity.shingles import LEAST, shingles
from govray.errors import UsageError
from govray.governance.policy.record_commitment import entry

VOCABULARY = [f"word{number}" for number in range(2000)]


def text(draw: random.Random, count: int) -> list[str]:
    return draw.choices(VOCABULARY, k=count)


def edited(draw: random.Random, original: list[str], share: float) -> list[str]:
    return [draw.choice(VOCABULARY) if draw.random() < share else word for word in original]


class Shelved:
    """One corpus on disk, and what its credential would say."""

    secret = bytes(range(32))

    def __init__(self, folder: Path, texts: list[str]) -> None:
        self.texts = [each.encode() for each in texts]
        self.folder = folder
        records = ((f"{i:05}", content) for i, content in enumerate(self.texts))
        self.root = build(folder, "one", records, secret=self.secret).root
        digests = [hashlib.sha256(content).digest() for content in self.texts]
        self.hashes = [each.hex() for each in digests]
        self.entries = [entry(each, self.secret).hex() for each in digests]

    def near(self, asked: str, least: float = 0.5, limit: int = 10) -> list[Near]:
        return near(
            asked.encode(),
            self.folder,
            {"one": self.root},
            lambda _, record, found: found == self.entries[record],
            {"one": self.secret},
            least=least,
            limit=limit,
        )


@pytest.fixture(scope="module")
def shelved(tmp_path_factory: pytest.TempPathFactory) -> Shelved:
    draw = random.Random(1)
    texts = [" ".join(text(draw, draw.randrange(20, 900))) for _ in range(120)]
    return Shelved(tmp_path_factory.mktemp("near"), texts)


def brute_force(shelved: Shelved, asked: str, least: float) -> dict[int, tuple[float, float]]:
    """Record → (Jaccard, overlap), by comparing all of them."""
    found = {}
    mine = set(shingles(asked.encode()))
    for record, content in enumerate(shelved.texts):
        own = set(shingles(content))
        overlap = len(own & mine) / min(len(own), len(mine))
        if overlap >= least:
            found[record] = len(own & mine) / len(own | mine), overlap
    return found


def test_records_are_found_as_brute_force_finds_them(shelved: Shelved) -> None:
    draw = random.Random(3)
    asked = found = wrong = 0
    for _ in range(60):
        original = draw.choice(shelved.texts).decode().split()
        start = draw.randrange(max(1, len(original) - 150))
        piece = edited(draw, original[start : start + 400], 0.02)
        if len(piece) < 2 * LEAST:
            continue
        expected = brute_force(shelved, " ".join(piece), 0.5)
        answers = {each.record: each for each in shelved.near(" ".join(piece))}
        asked += len(expected)
        found += len(expected.keys() & answers.keys())
        wrong += len(answers.keys() - expected.keys())
        for record, each in answers.items():
            assert (each.jaccard, each.overlap) == expected[record]
            assert each.sha256 == shelved.hashes[record]
    assert asked > 40
    assert wrong == 0
    assert found / asked >= 0.95


def test_a_piece_of_a_long_record_and_a_record_in_a_long_text_are_found(shelved: Shelved) -> None:
    draw = random.Random(4)
    longest = max(range(len(shelved.texts)), key=lambda i: len(shelved.texts[i]))
    piece = shelved.texts[longest].decode().split()[301:449]
    [answer, *_] = shelved.near(" ".join(piece))
    assert (answer.record, answer.overlap) == (longest, 1.0)
    assert answer.jaccard < 0.3
    short = min(range(len(shelved.texts)), key=lambda i: len(shelved.texts[i]))
    around = [*text(draw, 77), *shelved.texts[short].decode().split(), *text(draw, 50)]
    assert brute_force(shelved, " ".join(around), 0.5)[short][1] == 1.0


def test_a_quotation_of_sixty_words_is_found_wherever_it_stands(shelved: Shelved) -> None:
    draw = random.Random(6)
    long = [number for number, each in enumerate(shelved.texts) if each.count(b" ") > 200]
    quoted = found = by_four = 0
    for number in long:
        words = shelved.texts[number].decode().split()
        start = draw.randrange(len(words) - 60)
        quotation = " ".join(words[start : start + 60])
        quoted += 1
        found += number in {each.record for each in shelved.near(quotation)}
        asked, kept = (
            passage_signatures([shingles(each)], stride)[1]
            for each, stride in ((quotation.encode(), STRIDE), (shelved.texts[number], PASSAGE))
        )
        equal = in_bands(asked, 32)[:, None] == in_bands(kept, 32)
        by_four += bool(equal.all(axis=3).any())
    assert quoted > 80
    assert found >= 0.98 * quoted
    # The control: by bands of four numbers every third one is missed.
    assert by_four < 0.75 * quoted


def test_what_is_no_text_is_not_looked_for(shelved: Shelved) -> None:
    with pytest.raises(UsageError, match="text in UTF-8"):
        near("é".encode("latin-1") * 9, shelved.folder, {}, lambda *_: True, {}, least=0.5, limit=1)


def test_answers_are_bounded_and_the_likest_first(tmp_path: Path) -> None:
    draw = random.Random(5)
    original = text(draw, 200)
    shares = (0.0, 0.01, 0.02, 0.03)
    shelved = Shelved(tmp_path, [" ".join(edited(draw, original, share)) for share in shares])
    answers = shelved.near(" ".join(original), limit=3)
    assert len(answers) == 3
    assert [each.overlap for each in answers] == sorted((a.overlap for a in answers), reverse=True)
    assert answers[0].record == 0
