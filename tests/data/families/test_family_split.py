"""The reserve by family: copies of one text lie on one side, and a verifier sees that they do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from govray.data import corpus, records_file
from govray.data.admission import Prepared
from govray.data.families import near_families
from govray.data.families.near_families import Bands, Places
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
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    made = Shelf(tmp_path_factory.mktemp("families"))
    build(made, "copies")
    return made


@pytest.fixture(scope="module")
def by_family(shelf: Shelf) -> Prepared:
    return shelf.prepare("by-family", by_family=True)


def columns(prepared: Prepared, name: str = "copies") -> RecordColumns:
    """All records of a corpus behind each other."""
    parts = list(open_records(prepared.folder, prepared.manifest).columns(name))
    found = RecordColumns(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("entries", "tokens", "splits")
        )
    )
    if parts[0].families is None:
        return found
    return replace(
        found,
        families=np.concatenate([part.families for part in parts]),
        represented=np.concatenate([~part.standing for part in parts]),
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
    assert records.check()
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


def rebound(prepared: Prepared, changed: RecordColumns, number: int = 0) -> PreparedRecords:
    """The records of a part changed, and a manifest that binds them: an operator's lie."""
    value = prepared.manifest.to_json()
    part = value["corpora"][0]["parts"][number]
    part["recordsDigest"] = changed.digest
    read = records_file.reader(prepared.folder)
    manifest = Manifest.from_json(value)
    return PreparedRecords(manifest, lambda c, k: changed if k == number else read(c, k))


def test_a_split_that_its_family_does_not_say_is_refused(by_family: Prepared) -> None:
    first = open_records(by_family.folder, by_family.manifest).part("copies", 0).columns
    assert first.families is not None
    assert not first.standing.all()
    none = replace(first, families=None, represented=None)
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
    represented = ~first.standing
    represented[0] = False
    changed = replace(first, families=families, represented=represented)
    records = rebound(by_family, changed)
    assert len(records.check_part("copies", 0))  # it follows from its family
    with pytest.raises(
        Refused, match="1 families are named after a record that is not among theirs"
    ):
        records.check()


def test_a_family_for_which_no_record_stands_is_refused(by_family: Prepared) -> None:
    """It would leave the corpus without probe rows, and so unmeasured."""
    prepared = by_family.manifest.corpus("copies")
    last = len(prepared.parts) - 1
    columns = open_records(by_family.folder, by_family.manifest).part("copies", last).columns
    hidden = replace(columns, represented=np.ones(len(columns), np.bool_))
    records = rebound(by_family, hidden, last)
    assert len(records.check_part("copies", last))
    with pytest.raises(Refused, match="no record stands for"):
        records.check()


def test_a_second_supplier_s_copy_lies_on_the_same_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the reserve would train under his name, and what is learned would not show."""
    mine = {f"{number:03}": text for number in range(200) for text in versions(number, 1).values()}
    mine |= {f"{number}": f"short {number}".encode() for number in range(200, 220)}
    edited = {name: text + b" and more" for name, text in mine.items()}
    shelf = Shelf(tmp_path)
    shelf.add("mine", dict(sorted(mine.items())))
    shelf.add("zz-other", dict(sorted(edited.items())))

    def measured(prepared: Prepared) -> tuple[float, int]:
        """How much better the records of my reserve are known than the trained ones, and how many
        of mine could be measured; a text is known if any corpus trains on it."""
        ours, theirs = (columns(prepared, name) for name in ("mine", "zz-other"))
        known = (ours.splits == TRAIN) | (theirs.splits == TRAIN)
        return float(known[ours.splits == RESERVE].mean()), int(ours.standing.sum())

    across = shelf.prepare("across", by_family=True, reserve_share=0.3)
    assert open_records(across.folder, across.manifest).check()
    # Records of few words are near to equal ones alone.
    splits = [columns(across, name).splits[:200] for name in ("mine", "zz-other")]
    assert (splits[0] == splits[1]).all()
    known, standing = measured(across)
    assert known <= 0.1
    assert standing == len(mine)  # each is measured in its own corpus
    # The control: families within each corpus alone.
    joined = near_families.families

    def within(found: Bands, folder: Path) -> Places:
        half = len(mine)
        return np.concatenate(
            [np.array(joined(found[:, :half], folder)), half + joined(found[:, half:], folder)]
        )

    monkeypatch.setattr(near_families, "families", within)
    assert measured(shelf.prepare("within", by_family=True, reserve_share=0.3))[0] >= 0.5
