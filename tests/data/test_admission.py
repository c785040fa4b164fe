"""Admission: only what the policy allows and the credentials bind becomes a training row."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tokenizers

from govray.data import corpus, packing
from govray.data.admission import Prepared
from govray.data.arrow_rows import ArrowRows
from govray.data.corpus import read_credentials, verify_credentials
from govray.data.records_file import open_records
from govray.data.tokenizer import load_tokenizer
from govray.errors import GovrayError, Malformed, Refused, Untrusted, UsageError
from govray.governance.formats.document import format_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.record_columns import SPLITS
from govray.governance.policy.credential import Period
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.policy.record_commitment import SECRET_FILE, entry, read_secret
from tests.support.shelf import NOW, Shelf

SEPARATOR = 256
TWIN = b"the same bytes twice\n"


def texts(prefix: str, count: int) -> dict[str, bytes]:
    return {f"{i:03}": f"{prefix} {i}: {'lorem ' * (i % 7)}\n".encode() for i in range(count)}


@pytest.fixture(scope="module")
def full_shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """Two admitted corpora, one of several parts, and one that nobody may read."""
    shelf = Shelf(tmp_path_factory.mktemp("shelf"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "PART_BYTES", 500)
        shelf.add("mit", texts("mit", 60) | {"empty": b"", "another": TWIN, "twin": TWIN})
    shelf.add("mpl", texts("mpl", 40) | {"another": TWIN}, license="MPL-2.0")
    unknown = shelf.add("unknown", texts("unknown", 20), license="NOASSERTION")
    (unknown / "records-00000.parquet").write_bytes(b"whoever reads this file fails")
    return shelf


@pytest.fixture(scope="module")
def prepared(full_shelf: Shelf, cluster: None) -> Prepared:
    """By tasks of Ray Data; what other tests prepare is packed here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "HERE_BYTES", 0)
        return full_shelf.prepare()


def packed(prepared: Prepared, name: str) -> Iterator[list[int]]:
    rows = ArrowRows(prepared.folder, prepared.manifest)
    for row in range(prepared.manifest.train_rows(name)):
        yield rows.row(name, row).tolist()


def expected(
    shelf: Shelf, prepared: Prepared, name: str, *, reserve: bool = False
) -> Iterator[list[int]]:
    """Packing as its definition reads, byte by byte."""
    for part in corpus.part_files(shelf.corpora / name):
        stream: list[int] = []
        stated = prepared.manifest.corpus(name).commitment
        secret = read_secret(shelf.corpora / name, stated)
        for content in map(bytes, corpus.read_part(part)):
            record = entry(hashlib.sha256(content).digest(), secret)
            held = prepared.manifest.reserve.holds(record)
            if content and held == reserve:
                stream += [*content, SEPARATOR]
        for start in range(0, len(stream), 17):
            if len(row := stream[start : start + 17]) >= 2:
                yield row


@pytest.mark.parametrize("name", ["mit", "mpl"])
def test_rows_are_the_training_records_packed(
    full_shelf: Shelf, prepared: Prepared, name: str
) -> None:
    rows = list(packed(prepared, name))
    assert rows == list(expected(full_shelf, prepared, name))
    assert len(rows) > 50


@pytest.mark.parametrize("name", ["mit", "mpl"])
def test_the_reserve_has_rows_of_its_own(full_shelf: Shelf, prepared: Prepared, name: str) -> None:
    """Packed by the same rule; the records that a row states are those that it holds."""
    manifest = prepared.manifest
    held = list(expected(full_shelf, prepared, name, reserve=True))
    rows = ArrowRows(prepared.folder, manifest, reserve=True)
    assert manifest.reserve_rows(name) == rows.rows_in(name) == len(held) > 3
    assert [rows.row(name, row).tolist() for row in range(len(held))] == held
    parts = corpus.part_files(full_shelf.corpora / name)
    contents = [bytes(content) for part in parts for content in corpus.read_part(part)]
    records = open_records(prepared.folder, manifest)
    for row, tokens in enumerate(held):
        spans = records.row_records(name, row, "reserve")
        pieces = [list(contents[record][start:stop]) for record, start, stop in spans]
        assert [token for piece in pieces for token in piece] == [
            token for token in tokens if token != SEPARATOR
        ]
        assert all(records.record(name, s.record).split == "reserve" for s in spans)


def splits(prepared: Prepared, name: str) -> list[str]:
    """Of each of a corpus's records."""
    columns = open_records(prepared.folder, prepared.manifest).columns(name)
    return [SPLITS[code] for each in columns for code in each.splits]


def test_the_manifest_states_what_was_read(full_shelf: Shelf, prepared: Prepared) -> None:
    manifest = prepared.manifest
    records = open_records(prepared.folder, manifest)
    credentials = verify_credentials(
        full_shelf.corpora,
        read_credentials(full_shelf.corpora),
        full_shelf.trust,
        at=NOW,
    )
    assert [c.corpus for c in manifest.corpora] == ["mit", "mpl"]
    for c in manifest.corpora:
        credential = credentials[c.corpus]
        assert c.credential == credential.digest
        assert c.class_digest == credential.document.credential_class.digest
        assert records.check()[c.corpus] == credential.document.records.root
        assert manifest.records(c.corpus) == credential.document.records.count
    assert len(manifest.corpus("mit").parts) > 3
    assert set(splits(prepared, "mit")) == {"train", "reserve", "empty"}
    envelope = Envelope.parse(prepared.envelope)
    assert envelope.signed_by([full_shelf.signer.public_key])
    assert (prepared.folder / "manifest.dsse.json").read_bytes() == prepared.envelope
    assert {s.name: s.sha256 for s in prepared.sealed.subjects} == {
        c.corpus: records.merkle_root(c.corpus) for c in manifest.corpora
    }


def test_shards_are_partitioned_by_class_and_quarantine_is_counted(prepared: Prepared) -> None:
    for c in prepared.manifest.corpora:
        for k, part in enumerate(c.parts):
            assert part.file == f"class={c.class_digest[7:19]}/{c.corpus}-{k:05}.parquet"
    on_disk = {
        p.relative_to(prepared.folder).as_posix() for p in prepared.folder.rglob("*.parquet")
    }
    parts = [p for c in prepared.manifest.corpora for p in c.parts]
    assert on_disk == {p.file for p in parts} | {p.records_file for p in parts} | {
        p.reserve.file for p in parts if p.reserve
    }
    [refused] = prepared.manifest.quarantine
    assert (refused.corpus, refused.rule, refused.records) == ("unknown", "unknown-licence", 20)
    assert "NOASSERTION" in refused.reason


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.unlink(), "the corpus's secret cannot be read"),
        (lambda path: path.write_bytes(bytes(32)), "not the secret"),
    ],
    ids=["missing", "another"],
)
def test_nothing_is_prepared_without_a_corpuss_secret(
    tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    shelf = Shelf(tmp_path)
    secret = shelf.add("mit", texts("mit", 20)) / SECRET_FILE
    spoil(secret)
    with pytest.raises(Refused, match=says) as refused:
        shelf.prepare()
    assert str(secret) in str(refused.value)
    assert not list((shelf.folder / "out").glob("*"))


def trained(shelf: Shelf, prepared: Prepared, name: str) -> set[bytes]:
    """The records that can be read back from the rows of a one-part corpus."""
    stream = [token for row in packed(prepared, name) for token in row]
    text = "".join(chr(token) for token in stream)
    return {piece.encode("latin-1") for piece in text.split(chr(SEPARATOR))}


def test_the_reserve_is_in_no_row(full_shelf: Shelf, prepared: Prepared, cluster: None) -> None:
    (part,) = corpus.part_files(full_shelf.corpora / "mpl")
    contents = list(map(bytes, corpus.read_part(part)))
    held = splits(prepared, "mpl")
    reserve = {c for c, split in zip(contents, held, strict=True) if split == "reserve"}
    assert 2 <= len(reserve) <= 20
    assert not reserve & trained(full_shelf, prepared, "mpl")
    # Control: without a reserve the same records are in the rows.
    everything = full_shelf.prepare("no-reserve", reserve_share=0.0)
    assert reserve <= trained(full_shelf, everything, "mpl")
    # Another salt chooses other records.
    salted = full_shelf.prepare("other-salt", salt=b"\x08" * 32)
    assert splits(salted, "mpl") != held


def test_preparing_again_gives_the_same_manifest(
    full_shelf: Shelf, prepared: Prepared, cluster: None
) -> None:
    calls: list[tuple[int, int]] = []
    again = full_shelf.prepare("again", progress=lambda done, total: calls.append((done, total)))
    assert again.digest == prepared.digest
    for part in (p for c in prepared.manifest.corpora for p in c.parts):
        assert (again.folder / part.file).read_bytes() == (prepared.folder / part.file).read_bytes()
    assert calls[0] == (0, 104)
    assert calls[-1] == (104, 104)
    assert calls == sorted(calls)


def test_a_committed_folder_is_used_again(full_shelf: Shelf, prepared: Prepared) -> None:
    shelf = full_shelf
    # No cluster is asked, and the salt that was drawn first stays.
    again = shelf.prepare(salt=b"\x09" * 32)
    assert again.digest == prepared.digest
    for changes in (
        {"context": 17},
        {"reserve_share": 0.3},
        {"policy": read_policy(POLICY_WITHOUT_QUARANTINE)},
        {"tokenizer": load_tokenizer(word_tokenizer(shelf.folder / "words.json"))},
    ):
        with pytest.raises(Refused, match="prepared from other inputs"):
            shelf.prepare(**changes)
    # Any operator of the trust root may have signed it; another one may not.
    assert shelf.prepare(signer=shelf.other).envelope == prepared.envelope
    foreign = shelf.prepare("foreign", signer=LocalSigner.generate())
    assert foreign.digest == prepared.digest  # by its payload it is the same
    with pytest.raises(Untrusted, match="no signature verifies under any operator"):
        shelf.prepare("foreign")
    ended = [
        each.model_copy(update={"expires": format_time(NOW)}) for each in shelf.trust.authorities
    ]
    with pytest.raises(Untrusted, match="'operator' signed it but expired"):
        shelf.prepare(trust=replace(shelf.trust, authorities=tuple(ended)))


POLICY_WITHOUT_QUARANTINE = """
schema: govray.dev/depth-policy/v1
name: all
version: 1
valid: {from: 2026-11-01, until: 2027-11-01}
on_expiry: stop
profiles: {everything: {layers: all}}
rules: [{name: all, match: {}, profile: everything}]
"""


def edit_manifest(path: Path) -> None:
    envelope = json.loads(path.read_bytes())
    envelope["payload"] = envelope["payload"].replace("A", "B", 1)
    path.write_text(json.dumps(envelope, separators=(",", ":"), sort_keys=True))


@pytest.mark.parametrize("spoil", [edit_manifest, Path.unlink, lambda p: p.write_bytes(b"{}")])
def test_a_spoilt_manifest_is_not_used_again(
    full_shelf: Shelf, prepared: Prepared, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    shutil.copytree(prepared.folder, full_shelf.folder / "out" / tmp_path.name)
    spoil(full_shelf.folder / "out" / tmp_path.name / "manifest.dsse.json")
    with pytest.raises(Refused, match=r"manifest\.dsse\.json"):
        full_shelf.prepare(tmp_path.name)


def word_tokenizer(path: Path) -> Path:
    """A tokenizer of ten words whose last one is a special token."""
    words = ["[UNK]", "mpl", "mit", "lorem", "1", "2", "3", "4", "5", "<|end|>"]
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.enable_truncation(2)
    tokenizer.save(str(path))
    return path


# Refusals before anything is read: these corpora's records are garbage, so reading them would
# give another error (and there is no cluster to read with).


PAST = Period(from_="2025-01-01T00:00:00Z", until="2026-01-01T00:00:00Z")


def signed(*license: str, **fields: Any) -> Callable[[Shelf], dict[str, Any]]:
    """A corpus of one record, under a credential that says this of it."""

    def arrange(shelf: Shelf) -> dict[str, Any]:
        shelf.sign(corpus.build(shelf.corpora, "odd", [("a", b"1")]), *license, **fields)
        return {}

    return arrange


def self_signed(shelf: Shelf) -> dict[str, Any]:
    stranger = Shelf(shelf.folder / "stranger")
    shutil.move(stranger.add("odd", {"a": b"1"}), shelf.corpora / "odd")
    return {}


def without_credential(shelf: Shelf) -> dict[str, Any]:
    corpus.build(shelf.corpora, "odd", [("a", b"1")])
    return {}


def of_another(shelf: Shelf) -> dict[str, Any]:
    shutil.copytree(shelf.corpora / "good", shelf.corpora / "odd")
    return {}


def too_much(shelf: Shelf) -> dict[str, Any]:
    shelf.add("odd", texts("odd", 20), license="NOASSERTION")
    return {"max_quarantined": 0.2}


def nothing_left(shelf: Shelf) -> dict[str, Any]:
    shutil.rmtree(shelf.corpora / "good")
    shelf.add("odd", {"a": b"1"}, license="NOASSERTION")
    return {"max_quarantined": 1.0}


def reserved_rights(shelf: Shelf) -> dict[str, Any]:
    shelf.add("odd", {"a": b"1"}, description={"source": "crawled", "opt_out": "reserved"})
    return {}


@pytest.mark.parametrize(
    ("arrange", "kind", "says"),
    [
        (reserved_rights, Refused, r"'odd'.*rights in it are reserved \(opt_out: reserved\)"),
        (signed("GPL-3.0-only"), Refused, r"'odd'.*no rule of policy licences v1 matches"),
        (signed(valid=PAST), Untrusted, r"odd/credential\.dsse\.json: expired at 2026-01-01"),
        (
            signed(sensitivity="restricted"),
            Untrusted,
            r"odd/credential\.dsse\.json: outside the scope of .*librarian",
        ),
        (self_signed, Untrusted, r"odd/credential\.dsse\.json: no signature verifies"),
        (without_credential, Refused, r"odd/credential\.dsse\.json: no readable credential"),
        (of_another, Refused, r"odd/credential\.dsse\.json: the credential is for corpus 'good'"),
        (too_much, Refused, r"20 of 80 records.*'unknown-licence', such as 'odd'"),
        (nothing_left, Refused, "every corpus is quarantined"),
        (lambda shelf: {"context": 0}, UsageError, "context"),
        (lambda shelf: {"salt": b"short"}, Malformed, "reserve"),
        (lambda shelf: {"reserve_share": 1.0}, Malformed, "reserve"),
    ],
)
def test_refused_before_data_is_read(
    shelf: Shelf,
    arrange: Callable[[Shelf], dict[str, Any]],
    kind: type[GovrayError],
    says: str,
) -> None:
    shelf.add("good", texts("good", 60))
    changes = arrange(shelf)
    for part in shelf.corpora.glob("*/records-*.parquet"):
        part.write_bytes(b"whoever reads this file fails")
    with pytest.raises(kind, match=says):
        shelf.prepare(**changes)
    assert not (shelf.folder / "out").exists()


def rewrite(shelf: Shelf, records: list[bytes]) -> None:
    built = corpus.build(shelf.folder / "x", "bad", [(f"{i:03}", r) for i, r in enumerate(records)])
    target = shelf.corpora / "bad" / "records-00000.parquet"
    shutil.move(built.folder / target.name, target)


BAD = [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda shelf: rewrite(shelf, [*BAD, b"four"]), r"bad: 4 records, .* signed for 3"),
        (lambda shelf: rewrite(shelf, BAD[:2]), r"bad: 2 records, .* signed for 3"),
        (lambda shelf: rewrite(shelf, [BAD[1], BAD[0], BAD[2]]), r"bad: .*changed or moved"),
        (lambda shelf: rewrite(shelf, [b"One", *BAD[1:]]), r"bad: .*changed or moved"),
        (
            lambda shelf: pq.write_table(
                corpus.SCHEMA.empty_table(), shelf.corpora / "bad" / "records-00000.parquet"
            ),
            r"bad/records-00000\.parquet: a records file without records",
        ),
        (
            lambda shelf: (shelf.corpora / "bad" / "records-00000.parquet").write_bytes(b"PAR1"),
            r"bad/records-00000\.parquet: not a readable Parquet file",
        ),
        (
            lambda shelf: (shelf.corpora / "bad" / "records-00000.parquet").unlink(),
            r"bad: a corpus without records",
        ),
    ],
    ids=["added", "dropped", "swapped", "changed", "empty shard", "broken", "missing"],
)
def test_a_bad_corpus_leaves_no_prepared_folder(
    shelf: Shelf, cluster: None, spoil: Callable[[Shelf], object], says: str
) -> None:
    shelf.add("good", texts("good", 10))
    shelf.add("bad", {str(i): r for i, r in enumerate(BAD)})
    spoil(shelf)
    with pytest.raises(Refused, match=says):
        shelf.prepare()
    assert not list((shelf.folder / "out").iterdir())


def test_no_secret_is_in_the_prepared_data(full_shelf: Shelf, prepared: Prepared) -> None:
    for name in ("mit", "mpl"):
        secret = (full_shelf.corpora / name / SECRET_FILE).read_bytes()
        files = [path.read_bytes() for path in prepared.folder.rglob("*") if path.is_file()]
        assert len(files) > 3
        assert not [f for f in files if secret in f or secret.hex().encode() in f]
