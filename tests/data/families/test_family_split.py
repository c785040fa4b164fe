"""The reserve by family: copies of one text lie on one side, and a verifier sees that they do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from govray.data import corpus, records_file
from govray.data.admission import Prepared
from govray.data.records_file import open_records
from govray.errors import Refused
from govray.governance.formats.record_columns import RESERVE, TRAIN, RecordColumns
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import PreparedRecords
from tests.support.shelf import Shelf

COPIES = 6
TEXTS = 30


def versions(number: int, count: int) -> dict[str, bytes]:
    """Texts of which no two are alike, and so many versions of each."""
    words = [f"w{number}x{k}" for k in range(80)]
    return {
        f"{version}-{number:03}": " ".join([*words[:-1], f"version{version}"]).encode()
        for version in range(count)
    }


def build(shelf: Shelf, name: str) -> None:
    """In an order in which the versions of a text lie in parts of their own."""
    contents = {k: v for number in range(TEXTS) for k, v in versions(number, COPIES).items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "PART_BYTES", 12_000)
        shelf.add(name, dict(sorted(contents.items())))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, cluster: None) -> Shelf:
    made = Shelf(tmp_path_factory.mktemp("families"))
    build(made, "copies")
    return made


@pytest.fixture(scope="module")
def by_family(shelf: Shelf) -> Prepared:
    return shelf.prepare("by-family", by_family=True)


def columns(prepared: Prepared, name: str = "copies") -> RecordColumns:
    """All records of a corpus behind each other."""
    parts = list(open_records(prepared.folder, prepared.manifest).columns(name))
    families = [part.families for part in parts]
    return RecordColumns(
        np.concatenate([part.entries for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.splits for part in parts]),
        families=None if families[0] is None else np.concatenate(families),
    )


def sides(prepared: Prepared) -> list[set[int]]:
    """The splits that the versions of each text have."""
    splits = columns(prepared).splits.reshape(COPIES, TEXTS)
    return [set(splits[:, number].tolist()) for number in range(TEXTS)]


def test_copies_of_a_text_lie_on_one_side(shelf: Shelf, by_family: Prepared) -> None:
    assert len(by_family.manifest.corpus("copies").parts) > COPIES
    assert all(len(each) == 1 for each in sides(by_family))
    assert {TRAIN} in sides(by_family)
    assert {RESERVE} in sides(by_family)
    records = open_records(by_family.folder, by_family.manifest)
    assert records.check("copies")
    assert len({records.family("copies", k) for k in range(COPIES * TEXTS)}) == TEXTS
    # Without families they lie on both, and the manifest says nothing of them.
    by_record = shelf.prepare("by-record")
    assert sum(len(each) == 2 for each in sides(by_record)) > TEXTS / 2
    assert "families" not in by_record.manifest.to_json()
    assert columns(by_record).families is None


def test_a_preparation_goes_on_and_is_found_again(shelf: Shelf, by_family: Prepared) -> None:
    assert shelf.prepare("by-family", by_family=True).envelope == by_family.envelope
    with pytest.raises(Refused, match="prepared from other inputs"):
        shelf.prepare("by-family")


def rebound(prepared: Prepared, changed: RecordColumns) -> PreparedRecords:
    """The records of the first part changed, and a manifest that binds them: an operator's lie."""
    value = prepared.manifest.to_json()
    part = value["corpora"][0]["parts"][0]
    part["recordsDigest"] = changed.digest
    read = records_file.reader(prepared.folder)
    manifest = Manifest.from_json(value)
    return PreparedRecords(manifest, lambda c, k: changed if k == 0 else read(c, k))


def test_a_split_that_its_family_does_not_say_is_refused(by_family: Prepared) -> None:
    first = open_records(by_family.folder, by_family.manifest).part("copies", 0).columns
    assert first.families is not None
    assert first.represented.any()
    none = replace(first, families=None)
    with pytest.raises(Refused, match="do not state families"):
        rebound(by_family, none).check_part("copies", 0)
    # Each for itself: what a verifier would see if records could leave their families at will.
    alone = replace(first, families=first.entries)
    with pytest.raises(Refused, match="its family says"):
        rebound(by_family, alone).check_part("copies", 0)


def test_a_family_named_after_no_record_is_refused(by_family: Prepared) -> None:
    """Otherwise who holds the salt could draw a record's side again until it suits him."""
    first = open_records(by_family.folder, by_family.manifest).part("copies", 0).columns
    assert first.families is not None
    drawn = by_family.manifest.reserve
    invented = next(
        np.full(32, number, np.uint8)
        for number in range(256)
        if drawn.holds(bytes([number] * 32)) == (first.splits[0] == RESERVE)
    )
    families = first.families.copy()
    families[0] = invented
    records = rebound(by_family, replace(first, families=families))
    assert len(records.check_part("copies", 0))  # it follows from its family
    with pytest.raises(Refused, match="1 families are named after a record that is none of theirs"):
        records.check("copies")
