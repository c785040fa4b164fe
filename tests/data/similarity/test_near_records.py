"""Near copies for a service that can only say whether an entry is right."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from govray.data import corpus
from govray.data.similarity.near_copies import near_records
from govray.errors import Refused, UsageError
from govray.governance.policy import record_commitment
from tests.support.case_world import paragraph, reworded

SECRET = bytes(range(32))


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> corpus.Built:
    """A corpus of six paragraphs in three parts."""
    monkeypatch.setattr(corpus, "PART_BYTES", 900)
    records = [(f"{n}", paragraph("a", n).encode()) for n in range(6)]
    made = corpus.build(tmp_path, "a", records, secret=SECRET)
    assert len(corpus.part_files(made.folder)) > 2
    return made


def entry(number: int) -> str:
    record = hashlib.sha256(paragraph("a", number).encode()).digest()
    return record_commitment.entry(record, SECRET).hex()


def test_a_record_is_found_if_the_service_confirms_it(built: corpus.Built) -> None:
    asked: list[tuple[int, str]] = []

    def holds(number: int, found: str) -> bool:
        asked.append((number, found))
        return True

    text = reworded(paragraph("a", 4)).encode()
    folder = built.folder.parent
    (near,) = near_records(text, folder, "a", built.records, holds)
    assert (near.record, near.overlap > 0.5) == (4, True)
    assert asked == [(4, entry(4))]
    with pytest.raises(UsageError, match="record 4 is not the one"):
        near_records(text, folder, "a", built.records, lambda *_: False)


def test_another_corpus_or_secret_is_refused(built: corpus.Built) -> None:
    text, folder = paragraph("a", 4).encode(), built.folder.parent
    other = built.records.model_copy(update={"root": "sha256:" + "0" * 64})
    with pytest.raises(UsageError, match="not the records"):
        near_records(text, folder, "a", other, lambda *_: True)
    (built.folder / record_commitment.SECRET_FILE).write_bytes(bytes(32))
    with pytest.raises(Refused, match="not the secret"):
        near_records(text, folder, "a", built.records, lambda *_: True)


def test_the_service_is_asked_for_entries_as_they_are_on_disk(built: corpus.Built) -> None:
    for number in (0, 5, 2, 2, 4, 1, 3):
        asked: list[tuple[int, str]] = []
        near_records(
            paragraph("a", number).encode(),
            built.folder.parent,
            "a",
            built.records,
            lambda *of, asked=asked: not asked.append(of),
        )
        assert (number, entry(number)) in asked
        assert all(found == entry(place) for place, found in asked)
