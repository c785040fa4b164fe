"""Records as columns: what a walk over them gives, whatever is cut where; and what binds them."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.errors import Malformed, Refused
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.record_columns import ManifestRecord, RecordColumns
from govray.governance.record import prepared_records
from govray.governance.record.prepare_manifest import (
    AnyCorpus,
    BoundManifest,
    DrawnReserve,
    Manifest,
)
from govray.governance.record.prepared_records import PreparedRecords, StatedRecords
from tests.support.manifests import bind, corpus, make_manifest
from tests.support.table import each_row

RESERVE = DrawnReserve(share=0.25, salt="ab" * 16)
shapes = st.lists(st.lists(st.integers(0, 20), max_size=8), min_size=1, max_size=3)


def bound(parts: list[list[int]], context: int = 7) -> tuple[BoundManifest, PreparedRecords]:
    manifest, columns = bind(make_manifest(corpus("a", parts, context), context=context), RESERVE)

    def read(prepared: AnyCorpus, number: int) -> RecordColumns:
        return columns[prepared.corpus, number]

    return manifest, PreparedRecords(manifest, read)


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
    manifest, records = bound(parts, context)
    train, held = (walked(manifest, records, split) for split in ("train", "reserve"))
    assert (manifest.train_rows("a"), manifest.reserve_rows("a")) == (len(train), len(held))
    for split, rows in (("train", train), ("reserve", held)):
        for k, row in enumerate(rows):
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
    root = "sha256:" + merkle.root(entries).hex()
    assert records.check("a") == records.merkle_root("a") == root


@given(shapes)
def test_the_bound_document_round_trips(parts: list[list[int]]) -> None:
    manifest, _ = bound(parts)
    data = canonical_json.encode(manifest.to_json())
    assert BoundManifest.from_json(canonical_json.parse_canonical(data)) == manifest


def test_its_size_does_not_grow_with_records() -> None:
    small, large = (
        len(canonical_json.encode(bound([[5] * count])[0].to_json())) for count in (10, 10_000)
    )
    assert large < small + 40


def test_golden_digest_of_columns() -> None:
    """It is signed: entry, tokens as eight bytes, split as one, record by record."""
    entry = hashlib.sha256(b"a").digest()
    columns = RecordColumns.of(
        [ManifestRecord(entry.hex(), 258, "reserve"), ManifestRecord("00" * 32, 0, "empty")]
    )
    content = entry + b"\x02\x01" + bytes(6) + b"\x01" + bytes(40) + b"\x02"
    assert columns.digest == "sha256:" + hashlib.sha256(content).hexdigest()


def test_golden_drawn_reserve() -> None:
    """The choice leaves the process: data already split must stay split alike."""
    held = [i for i in range(24) if RESERVE.holds(hashlib.sha256(bytes([i])).digest())]
    assert held == GOLDEN
    # Another salt, another choice; no share, none.
    entries = [hashlib.sha256(bytes([i])).digest() for i in range(24)]
    other = DrawnReserve(share=0.25, salt="cd" * 16)
    assert [i for i, e in enumerate(entries) if other.holds(e)] != held
    assert not any(DrawnReserve(share=0, salt="ab" * 16).holds(e) for e in entries)


GOLDEN = [2, 11, 14, 15, 17, 20, 22, 23]


def test_the_drawn_reserve_has_about_its_share() -> None:
    digests = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(10_000))
    held = RESERVE.held(np.frombuffer(digests, np.uint8).reshape(-1, 32))
    assert abs(int(held.sum()) - 2500) < 220  # five standard deviations


# What binds


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
    manifest, columns = bind(make_manifest(corpus("a", [[9, 3], [4, 30]], 7)), RESERVE)
    changed = columns | {("a", 1): change(columns["a", 1])}
    records = PreparedRecords(manifest, lambda c, k: changed[c.corpus, k])
    assert records.part("a", 0)
    with pytest.raises(Refused, match=r"a-00001\.records\.parquet: the records are not those"):
        records.check("a")
    # Without the digest's comparison they would pass as the manifest's.
    assert PreparedRecords(manifest, lambda c, k: columns[c.corpus, k]).check("a")


@each_row(
    ("change", "says"),
    [
        (lambda p: p["splits"].update(train=p["splits"]["train"] + 1), "do not add up"),
        (lambda p: p.update(rows=p["rows"] + 1), "its tokens make"),
        (lambda p: p.update(tokens=0, rows=0), "0 tokens of"),
        (lambda p: p["reserve"].update(tokens=1, rows=0), "rows"),
        (lambda p: p.pop("reserve"), "0 tokens of 1 records in reserve"),
        (lambda p: p.update(rowsPerGroup=0), "rowsPerGroup"),
        (lambda p: p.update(records=[0, 9]), "do not add up"),
        (lambda p: p.update(recordsDigest="sha256:0"), "recordsDigest"),
        (lambda p: p.update(note=1), "note"),
    ],
)
def test_contradictions_of_a_bound_manifest_are_refused(change: Any, says: str) -> None:
    parts = [[9] * 8]
    manifest, _ = bound(parts)
    value = manifest.to_json()
    held = value["corpora"][0]["parts"][0]["splits"]["reserve"]
    assert held
    BoundManifest.from_json(value)
    change(value["corpora"][0]["parts"][0])
    with pytest.raises(Malformed, match=says.replace(" 1 records", f" {held} records")):
        BoundManifest.from_json(value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokens": 1}, "its records make"),
        ({"splits": 1}, "its records are"),
    ],
)
def test_counts_that_the_records_do_not_have_are_refused(change: dict[str, int], says: str) -> None:
    """Signed, consistent in themselves, and false: only the records tell."""
    manifest, columns = bind(make_manifest(corpus("a", [[9, 3, 0, 5, 12, 4]], 7)), RESERVE)
    value = manifest.to_json()
    part = value["corpora"][0]["parts"][0]
    if "tokens" in change:
        part["tokens"] += 1
        part["rows"] = part["tokens"] // 8 + (part["tokens"] % 8 >= 2)
    else:
        part["splits"]["train"] -= 1
        part["splits"]["empty"] += 1
    false = BoundManifest.from_json(value)
    with pytest.raises(Refused, match=says):
        PreparedRecords(false, lambda c, k: columns[c.corpus, k]).check("a")


def test_a_stated_count_that_rows_cannot_hold_is_refused() -> None:
    manifest, records = bound([[9] * 12, [3] * 5])
    every = np.arange(manifest.train_rows("a"))
    exact = records.distinct_records("a", every)
    for false in (exact - 1, exact + 1):
        with pytest.raises(Refused, match="hold"):
            StatedRecords(manifest, {"a": false}).distinct_records("a", every)
    with pytest.raises(Refused, match="hold 1 to"):
        StatedRecords(manifest, {}).distinct_records("a", every[:1])


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
    manifest, records = bound(parts, context)
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


def test_every_row_of_a_long_record_has_the_same_chance() -> None:
    manifest, records = bound([[80]])
    rows = np.arange(manifest.train_rows("a"))
    assert len(rows) == 10
    times = Counter(
        [e is not None for e in records.designated("a", rows, "train", key)].index(True)
        for key in range(2000)
    )
    assert all(130 < times[row] < 270 for row in range(10))
