"""The prepare manifest: packing is arithmetic, and a manifest that contradicts it is refused."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.errors import Malformed
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.record_columns import ManifestRecord
from govray.governance.record.prepare_manifest import (
    InlineManifest,
    Reserve,
)
from tests.support.manifests import RESERVE, corpus, make_manifest, records_of
from tests.support.table import each_row


def packed(manifest: InlineManifest, name: str) -> list[list[tuple[int, int] | None]]:
    """The oracle: really concatenate and cut. A token is (record, offset), a separator None."""
    rows = []
    for part in manifest.corpus(name).parts:
        stream: list[tuple[int, int] | None] = []
        for i in range(*part.records):
            record = manifest.corpus(name).records[i]
            if record.split == "train":
                stream += [(i, t) for t in range(record.tokens)]
                stream.append(None)
        width = manifest.context + 1
        rows += [stream[o : o + width] for o in range(0, len(stream), width)]
    return [row for row in rows if len(row) >= 2]


shapes = st.lists(st.lists(st.integers(0, 20), max_size=8), min_size=1, max_size=3)


@settings(max_examples=60)
@given(shapes, st.integers(1, 12))
def test_rows_are_those_of_really_packing(parts: list[list[int]], context: int) -> None:
    manifest = make_manifest(corpus("a", parts, context), context=context)
    rows = packed(manifest, "a")
    assert manifest.train_rows("a") == len(rows)
    for k, row in enumerate(rows):
        assert manifest.row_length("a", k) == len(row)
        assert manifest.targets("a", k) == len(row) - 1
        spans = records_of(manifest).row_records("a", k)
        tokens = [(s.record, t) for s in spans for t in range(s.start, s.stop)]
        assert tokens == [token for token in row if token is not None]
        assert all(s.start < s.stop for s in spans)


@settings(max_examples=60)
@given(shapes, st.integers(1, 12))
def test_record_rows_inverts_row_records(parts: list[list[int]], context: int) -> None:
    manifest = make_manifest(corpus("a", parts, context), context=context)
    for i in range(len(manifest.corpus("a").records)):
        assert list(records_of(manifest).record_rows("a", i)) == [
            row
            for row in range(manifest.train_rows("a"))
            if any(span.record == i for span in records_of(manifest).row_records("a", row))
        ]


@given(shapes)
def test_the_document_round_trips(parts: list[list[int]]) -> None:
    manifest = make_manifest(corpus("a", parts, 7), corpus("b", [[5, 6]], 7))
    data = canonical_json.encode(manifest.to_json())
    assert InlineManifest.from_json(canonical_json.parse_canonical(data)) == manifest


def test_outside_is_an_error() -> None:
    manifest = make_manifest(corpus("a", [[20, 20, 20]], 7))
    for row in (-1, manifest.train_rows("a")):
        with pytest.raises(ValueError, match="outside"):
            records_of(manifest).row_records("a", row)
    with pytest.raises(ValueError, match="exist"):
        records_of(manifest).record_rows("a", 3)
    with pytest.raises(Malformed, match="zeta"):
        manifest.train_rows("zeta")


def test_find_gives_every_place() -> None:
    one, two = corpus("a", [[3], [4]], 7), corpus("b", [[5]], 7)
    # The same record in two corpora is two records.
    twin = ManifestRecord(one.records[0].entry, 5, one.records[0].split)
    manifest = make_manifest(one, two.model_copy(update={"records": (twin,)}))
    assert records_of(manifest).find(one.records[0].entry) == (("a", 0), ("b", 0))
    assert records_of(manifest).find(one.records[1].entry) == (("a", 1),)
    assert records_of(manifest).find("00" * 32) == ()


def test_merkle_root_is_over_the_raw_hashes() -> None:
    manifest = make_manifest(corpus("a", [[3, 0], [4]], 7))
    hashes = [bytes.fromhex(r.entry) for r in manifest.corpus("a").records]
    assert records_of(manifest).merkle_root("a") == "sha256:" + merkle.root(hashes).hex()


# The reserve


@given(
    st.floats(0, 1, exclude_max=True),
    st.binary(min_size=16, max_size=64),
    st.binary(min_size=32, max_size=32),
)
def test_the_reserve_is_the_inequality_it_says(share: float, salt: bytes, record: bytes) -> None:
    reserve = Reserve(share=share, salt=salt.hex())
    mac = hmac.new(salt, record, "sha256").digest()
    # Both sides exact: a float is a dyadic fraction.
    numerator, denominator = share.as_integer_ratio()
    assert reserve.holds(record) == (int.from_bytes(mac, "big") * denominator < numerator * 2**256)


def test_the_reserve_has_about_its_share_and_follows_the_salt() -> None:
    records = [hashlib.sha256(str(i).encode()).digest() for i in range(10_000)]
    held = [RESERVE.holds(r) for r in records]
    # 2,500 expected with a standard deviation of 43: five of them.
    assert abs(sum(held) - 2500) < 220
    other = Reserve(share=0.25, salt="cd" * 16)
    assert [other.holds(r) for r in records] != held
    assert not any(Reserve(share=0, salt="ab" * 16).holds(r) for r in records)


def test_golden_reserve() -> None:
    """The choice leaves the process: data already split must stay split alike."""
    held = [i for i in range(24) if RESERVE.holds(hashlib.sha256(bytes([i])).digest())]
    assert held == [4, 6, 10, 17]


# Contradictions


@each_row(
    ("change", "says"),
    [
        (lambda m: m["corpora"].reverse(), "sorted"),
        (lambda m: m["corpora"].append(m["corpora"][1]), "distinct"),
        (lambda m: m["corpora"][0]["parts"][0].update(rows=9), "9 rows"),
        (lambda m: m["corpora"][0]["parts"][0].update(tokens=9), "9 tokens"),
        (lambda m: m["corpora"][0]["parts"][0].update(records=[1, 3]), "start at record 0"),
        (lambda m: m["corpora"][0]["parts"][1].update(records=[2, 5]), "start at record 3"),
        (lambda m: m["corpora"][0]["parts"].pop(), "end at record 3"),
        (lambda m: m["corpora"][0]["parts"].reverse(), "out of order"),
        (lambda m: m["corpora"][0]["parts"][0]["rowGroups"].pop(), "row groups"),
        (lambda m: m["corpora"][0]["records"].pop(), "records make"),
        (lambda m: m["corpora"][0]["records"][0].__setitem__(1, 0), "its hash says empty"),
        (lambda m: m["corpora"][0]["records"][0].__setitem__(2, "empty"), "is marked empty"),
        (lambda m: m["corpora"][0]["records"][0].__setitem__(2, "reserve"), "marked reserve"),
        (lambda m: m["corpora"][0]["records"][0].append(1), "records"),
        (lambda m: m["corpora"][0]["records"][0].__setitem__(0, "AB" * 32), "records"),
        (lambda m: m["corpora"][1]["parts"][0].update(file="class=0/../x.parquet"), "file"),
        (
            lambda m: m["corpora"][1]["parts"][0].update(file=m["corpora"][0]["parts"][0]["file"]),
            "share one shard",
        ),
        (lambda m: m["tokenizer"].update(separator=257), "separator"),
        (lambda m: m["reserve"].update(share=1.0), "share"),
        (lambda m: m["reserve"].update(salt="00"), "salt"),
        (lambda m: m["quarantine"].extend([QUARANTINED] * 2), "distinct"),
        (lambda m: m.update(context=0), "context"),
        (lambda m: m.update(note="x"), "note"),
    ],
)
def test_contradictions_are_refused(change: Any, says: str) -> None:
    value = make_manifest(corpus("a", [[6, 0, 20], [9]], 7), corpus("b", [[5]], 7)).to_json()
    assert value["corpora"][0]["records"][0][2] == "train"
    InlineManifest.from_json(value)
    change(value)
    with pytest.raises(Malformed, match=says):
        InlineManifest.from_json(value)


QUARANTINED = {"corpus": "c", "rule": "unknown", "reason": "no licence", "records": 3}
