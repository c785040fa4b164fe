"""Corpora: what is written is what was given, whole or not at all, and any change is refused."""

from __future__ import annotations

import hashlib
import hmac
import random
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.data import corpus
from govray.errors import Malformed, Refused, UsageError
from govray.governance.formats import merkle
from govray.governance.policy.credential import Period, Records
from govray.governance.policy.record_commitment import SECRET_FILE

GOLDEN_ROOT = "sha256:d84c59bada30aa0a0329a0fa9375bedcea42ab3a9dae23055f36d21497aa4392"
SECRET = bytes(range(32))
RECORDS = {"a.py": b"import os\n", "b.py": b"", "c/d.py": b"\x00\xff" * 40, "e.py": b"x"}
VALID = Period(from_="2026-11-01T00:00:00Z", until="2027-11-01T00:00:00Z")


def records_of(contents: list[bytes], secret: bytes = SECRET) -> Records:
    """What a credential states of them, as RFC 2104 and RFC 9162 read."""
    hashes = [hashlib.sha256(c).digest() for c in contents]
    leaves = [hmac.digest(secret, b"record" + h, "sha256") + h for h in hashes]
    return Records(
        root="sha256:" + merkle.root(leaves).hex(),
        count=len(leaves),
        commitment="sha256:" + hmac.digest(secret, b"corpus", "sha256").hex(),
    )


def build(folder: Path, name: str = "notes") -> corpus.Built:
    return corpus.build(folder, name, sorted(RECORDS.items()), secret=SECRET)


def contents(folder: Path) -> list[bytes]:
    return [bytes(r) for part in corpus.part_files(folder) for r in corpus.read_part(part)]


@given(
    records=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.binary(), min_size=1
    ),
    part_bytes=st.integers(1, 64),
)
def test_what_is_read_back_is_what_was_given(records: dict[str, bytes], part_bytes: int) -> None:
    ordered = sorted(records.items())
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "PART_BYTES", part_bytes)
        built = corpus.build(Path(folder), "notes", iter(ordered), secret=SECRET)
        parts = [corpus.read_part(p) for p in corpus.part_files(built.folder)]
        names = [
            name
            for part in corpus.part_files(built.folder)
            for name in pq.read_table(part, columns=["name"])["name"].to_pylist()
        ]
        found = [bytes(record) for part in parts for record in part]
        corpus.verify_corpus(built.folder, built.records)
    assert list(zip(names, found, strict=True)) == ordered
    # The root is that of the contents, however they fall into parts.
    assert built.records == records_of([content for _, content in ordered])
    assert built.bytes == sum(map(len, records.values()))
    assert all(len(part) == 1 or sum(map(len, part)) <= part_bytes for part in parts)


def test_golden_root(tmp_path: Path) -> None:
    assert build(tmp_path).root == GOLDEN_ROOT


def test_every_corpus_has_a_secret_of_its_own_that_only_its_owner_reads(tmp_path: Path) -> None:
    one, two = (corpus.build(tmp_path, name, sorted(RECORDS.items())) for name in "ab")
    first, second = ((each.folder / SECRET_FILE).read_bytes() for each in (one, two))
    assert (len(first), len(second)) == (32, 32)
    assert first != second
    assert one.root != two.root
    assert stat.S_IMODE((one.folder / SECRET_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.unlink(), "the corpus's secret cannot be read"),
        (lambda path: path.write_bytes(SECRET[:-1]), "not the secret"),
        (lambda path: path.write_bytes(SECRET + b"\n"), "not the secret"),
        (lambda path: path.write_bytes(bytes(32)), "not the secret"),
        (lambda path: path.chmod(0o640), "can be read by others"),
    ],
    ids=["missing", "cut", "long", "another", "open"],
)
def test_a_secret_that_cannot_be_used_is_named(
    tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    built = build(tmp_path)
    corpus.verify_corpus(built.folder, built.records)
    spoil(built.folder / SECRET_FILE)
    with pytest.raises(Refused, match=says) as refused:
        corpus.verify_corpus(built.folder, built.records)
    assert str(built.folder / SECRET_FILE) in str(refused.value)
    assert SECRET.hex() not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "records", "says"),
    [
        ("notes", [], "no records"),
        ("notes", [("a", b"1"), ("a", b"2")], "two records have this name"),
        ("notes", [("b", b"1"), ("a", b"2")], "comes after 'b'"),
        ("notes", [("\udce9.py", b"1")], "not a Unicode name"),
        ("notes", [("", b"1")], "not a Unicode name"),
        ("../notes", [("a", b"1")], "not a corpus name"),
        (".notes", [("a", b"1")], "not a corpus name"),
        ("n" * 129, [("a", b"1")], "not a corpus name"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    tmp_path: Path, name: str, records: list[tuple[str, bytes]], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        corpus.build(tmp_path / "corpora", name, records)
    assert not list(tmp_path.rglob("*.parquet"))
    assert not list((tmp_path / "corpora").glob("*"))


def test_a_source_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "PART_BYTES", 1)

    def failing() -> Iterator[tuple[str, bytes]]:
        yield "a", b"first part"
        yield "b", b"second part"
        raise PermissionError(13, "Permission denied", "/data/c")

    with pytest.raises(UsageError, match=r"/data/c: Permission denied"):
        corpus.build(tmp_path, "notes", failing())
    assert not list(tmp_path.iterdir())


def change(records: list[bytes]) -> list[bytes]:
    return [records[0], b"!", *records[2:]]


def rewrite(folder: Path, records: list[bytes]) -> None:
    table = pa.table([[str(i) for i in range(len(records))], records], schema=corpus.SCHEMA)
    pq.write_table(table, folder / "records-00000.parquet")


@pytest.mark.parametrize(
    ("mutate", "says"),
    [
        (lambda r: [*r, b"added"], "5 records, the credential was signed for 4"),
        (lambda r: r[:-1], "3 records, the credential was signed for 4"),
        (lambda r: [r[1], r[0], *r[2:]], "a record was changed or moved"),
        (change, "a record was changed or moved"),
        (lambda r: [*r[:-1], r[0]], "a record was changed or moved"),
    ],
    ids=["added", "dropped", "swapped", "changed", "repeated"],
)
def test_other_records_than_signed_are_refused(
    tmp_path: Path, mutate: Callable[[list[bytes]], list[bytes]], says: str
) -> None:
    built = build(tmp_path)
    changed = mutate(contents(built.folder))
    rewrite(built.folder, changed)
    with pytest.raises(Refused, match=says) as refused:
        corpus.verify_corpus(built.folder, built.records)
    assert str(built.folder) in str(refused.value)
    # Control: it is the signed root and count that refuse, not the rewritten file.
    corpus.verify_corpus(built.folder, records_of(changed))


def test_a_changed_byte_is_refused_or_changes_no_record(tmp_path: Path) -> None:
    built = build(tmp_path)
    path = built.folder / "records-00000.parquet"
    data = path.read_bytes()
    draw = random.Random(1)
    refused = 0
    for position in draw.sample(range(len(data)), 300):
        changed = data[position] ^ (1 << draw.randrange(8))
        path.write_bytes(data[:position] + bytes([changed]) + data[position + 1 :])
        try:
            corpus.verify_corpus(built.folder, built.records)
        except Refused:
            refused += 1
        else:  # in a name, a statistic or padding
            assert contents(built.folder) == list(RECORDS.values())
    assert refused > 100


def test_a_licence_of_ones_own_needs_its_category(tmp_path: Path) -> None:
    built = build(tmp_path)
    terms = {"license": "LicenseRef-acme", "issuer": "me", "valid": VALID}
    with pytest.raises(UsageError, match="the licence category does not follow"):
        corpus.unsigned_credential(built, **terms)
    credential = corpus.unsigned_credential(built, **terms, license_category="commercial")
    assert credential.license_category == "commercial"
    with pytest.raises(Malformed, match="no SPDX licence expression"):
        corpus.unsigned_credential(built, license="three words here", issuer="me", valid=VALID)
