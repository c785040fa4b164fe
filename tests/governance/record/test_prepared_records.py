"""Records as columns: what a walk over them gives, whatever is cut where; and what binds them."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.errors import Refused
from govray.governance.formats import merkle
from govray.governance.formats.record_columns import ManifestRecord, RecordColumns
from govray.governance.record import prepared_records
from govray.governance.record.prepare_manifest import Manifest, PreparedCorpus
from govray.governance.record.prepared_records import PreparedRecords, StatedRecords
from tests.support.manifests import FILES, corpus, make_manifest, records_of
from tests.support.table import each_row

shapes = st.lists(st.lists(st.integers(0, 20), max_size=8), min_size=1, max_size=3)


def made(parts: list[list[int]], context: int = 7) -> tuple[Manifest, PreparedRecords]:
    manifest = make_manifest(corpus("a", parts, context), context=context)
    return manifest, records_of(manifest)


def walked(manifest: Manifest, records: PreparedRecords, split: str) -> list[list[Any]]:
    """The oracle: really concatenate and cut. A token is (record, offset), a separator None."""
    rows = []
    width = manifest.context + 1
    for part in manifest.corpus("a").parts:
        stream: list[Any] = []
        for i in range(*part.records):
            record = records.record("a", i)
            if record.split == split:
                stream += [*((i, t) for t in range(record.tokens)), None]
        rows += [stream[o : o + width] for o in range(0, len(stream), width)]
    return [row for row in rows if len(row) >= 2]


@settings(max_examples=60)
@given(shapes, st.integers(1, 12), st.data())
def test_columns_give_what_a_walk_gives(
    parts: list[list[int]], context: int, data: st.DataObject
) -> None:
    manifest, records = made(parts, context)
    train, held = (walked(manifest, records, split) for split in ("train", "reserve"))
    assert (manifest.train_rows("a"), manifest.reserve_rows("a")) == (len(train), len(held))
    for split, rows in (("train", train), ("reserve", held)):
        for k, row in enumerate(rows):
            if split == "train":
                assert manifest.row_length("a", k) == manifest.targets("a", k) + 1 == len(row)
            spans = records.row_records("a", k, split)
            tokens = [(s.record, t) for s in spans for t in range(s.start, s.stop)]
            assert tokens == [token for token in row if token is not None]
    for i in range(records.count("a")):
        assert list(records.record_rows("a", i)) == [
            k for k, row in enumerate(train) if any(token and token[0] == i for token in row)
        ]
    some = sorted(data.draw(st.sets(st.integers(0, len(train) - 1)) if train else st.just(set())))
    expected = {token[0] for k in some for token in train[k] if token}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_records, "_AT_ONCE", data.draw(st.integers(1, 9)))
        rows_read = np.array(some, np.int64)
        assert records.distinct_records("a", rows_read) == len(expected)
        # The counts alone allow what is true.
        stated = StatedRecords(manifest, {"a": len(expected)})
        assert stated.distinct_records("a", rows_read) == len(expected)
    entries = [bytes.fromhex(records.record("a", i).entry) for i in range(records.count("a"))]
    root = "sha256:" + merkle.root_of(entries).hex()
    assert records.check()["a"] == records.merkle_root("a") == root


def test_golden_digest_of_columns() -> None:
    """It is signed: entry, tokens as eight bytes, split as one, record by record."""
    entry = hashlib.sha256(b"a").digest()
    columns = RecordColumns.of(
        [ManifestRecord(entry.hex(), 258, "reserve"), ManifestRecord("00" * 32, 0, "empty")]
    )
    content = entry + b"\x02\x01" + bytes(6) + b"\x01" + bytes(40) + b"\x02"
    assert columns.digest == "sha256:" + hashlib.sha256(content).hexdigest()


def other_entry(columns: RecordColumns) -> RecordColumns:
    entries = columns.entries.copy()
    entries[0, 0] ^= 1
    return RecordColumns(entries, columns.tokens, columns.splits)


def other_tokens(columns: RecordColumns) -> RecordColumns:
    tokens = columns.tokens.copy()
    tokens[0] += 1
    return RecordColumns(columns.entries, tokens, columns.splits)


def other_split(columns: RecordColumns) -> RecordColumns:
    splits = columns.splits.copy()
    splits[0] = 1 - splits[0]
    return RecordColumns(columns.entries, columns.tokens, splits)


def negative(columns: RecordColumns) -> RecordColumns:
    return RecordColumns(columns.entries, -columns.tokens, columns.splits)


def no_split(columns: RecordColumns) -> RecordColumns:
    return RecordColumns(columns.entries, columns.tokens, columns.splits + np.uint8(3))


def one_fewer(columns: RecordColumns) -> RecordColumns:
    return columns.slice(0, len(columns) - 1)


def swapped(columns: RecordColumns) -> RecordColumns:
    order = np.array([1, 0, *range(2, len(columns))])
    return RecordColumns(columns.entries[order], columns.tokens[order], columns.splits[order])


@each_row(
    "change",
    [other_entry, other_tokens, other_split, negative, no_split, one_fewer, swapped],
)
def test_other_records_than_the_manifests_are_refused(change: Any) -> None:
    manifest, true = made([[9, 3], [4, 30]])

    def read(prepared: PreparedCorpus, number: int) -> RecordColumns:
        columns = FILES.read(prepared, number)
        return change(columns) if number == 1 else columns

    records = PreparedRecords(manifest, read)
    assert records.part("a", 0)
    with pytest.raises(Refused, match=r"a-00001\.records\.parquet: the records are not those"):
        records.check()
    # The control: the true ones pass.
    assert true.check()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokens": 1}, "its records make"),
        ({"splits": 1}, "its records are"),
    ],
)
def test_counts_that_the_records_do_not_have_are_refused(change: dict[str, int], says: str) -> None:
    """Signed, consistent in themselves, and false: only the records tell."""
    manifest, _ = made([[9, 3, 0, 5, 12, 4]])
    value = manifest.to_json()
    part = value["corpora"][0]["parts"][0]
    if "tokens" in change:
        part["tokens"] += 1
        part["rows"] = part["tokens"] // 8 + (part["tokens"] % 8 >= 2)
    else:
        part["splits"]["train"] -= 1
        part["splits"]["empty"] += 1
    false = Manifest.from_json(value)
    with pytest.raises(Refused, match=says):
        records_of(false).check()


def holders(rows: list[list[Any]]) -> list[int]:
    """The record that each row has most tokens of, the first of equals."""
    found = []
    for row in rows:
        counts = Counter(token[0] for token in row if token is not None)
        found.append(max(counts, key=lambda record: (counts[record], -record)))
    return found


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 60), max_size=8), min_size=1, max_size=3),
    st.integers(1, 12),
    st.integers(0, 2**64 - 1),
)
def test_every_record_that_holds_a_row_has_one_designated_row(
    parts: list[list[int]], context: int, key: int
) -> None:
    manifest, records = made(parts, context)
    for split in ("train", "reserve"):
        rows = holders(walked(manifest, records, split))
        found = records.designated("a", np.arange(len(rows)), split, key)
        named = [entry for entry in found if entry is not None]
        assert sorted(named) == sorted({records.record("a", i).entry for i in rows})
        for row, entry in enumerate(found):
            assert entry in (None, records.record("a", rows[row]).entry)
        backwards = records.designated("a", np.arange(len(rows))[::-1].copy(), split, key)
        assert backwards[::-1] == found
        with pytest.raises(ValueError, match="outside"):
            records.designated("a", np.array([len(rows)]), split, key)
