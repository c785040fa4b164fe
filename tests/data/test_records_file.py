"""Records files: what is written is read, and what is not such a file is named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.data import records_file
from govray.errors import CouldNotCheck, GovrayError, Malformed, Refused
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.record_columns import ManifestRecord, RecordColumns
from govray.governance.formats.statement import Subject, seal
from govray.governance.record.prepare_manifest import MANIFEST_FILE
from tests.support.manifests import FILES, corpus, make_manifest

RECORD = st.builds(
    ManifestRecord,
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.integers(0, 2**53 - 1),
    st.sampled_from(["train", "reserve", "empty"]),
)


@given(st.lists(RECORD, max_size=9))
@settings(max_examples=40)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, records: list[ManifestRecord]
) -> None:
    path = tmp_path_factory.mktemp("records") / "r.parquet"
    columns = RecordColumns.of(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_file, "_GROUP", 4)
        records_file.write(path, columns)
    found = records_file.read(path, len(records))
    assert [found.record(i) for i in range(len(found))] == records
    assert found.digest == columns.digest


def columns_of(count: int) -> RecordColumns:
    entries = [hashlib.sha256(bytes([i])).hexdigest() for i in range(count)]
    return RecordColumns.of([ManifestRecord(entry, 5, "train") for entry in entries])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def nulls(path: Path) -> None:
    table = pq.read_table(path)
    column = pa.array([None, *table.column("tokens").to_pylist()[1:]], pa.int64())
    pq.write_table(table.set_column(1, "tokens", column), path)


def other_width(path: Path) -> None:
    table = pq.read_table(path)
    entries = [each[:31] for each in table.column("entry").to_pylist()]
    pq.write_table(table.set_column(0, "entry", pa.array(entries, pa.binary(31))), path)


@pytest.mark.parametrize(
    ("spoil", "kind", "says"),
    [
        (Path.unlink, CouldNotCheck, "missing"),
        (cut, Malformed, "not a readable file of records"),
        (lambda p: p.write_bytes(b""), Malformed, "not a readable file of records"),
        (nulls, Malformed, "do not decode"),
        (other_width, Malformed, "not a file of records"),
        (lambda p: pq.write_table(pq.read_table(p)[:3], p), Malformed, "it has 3 records"),
        (
            lambda p: pq.write_table(pq.read_table(p).select(["entry", "tokens"]), p),
            Malformed,
            "not a file of records",
        ),
    ],
)
def test_what_is_no_such_file_is_named(
    tmp_path: Path, spoil: Callable[[Path], object], kind: type[GovrayError], says: str
) -> None:
    path = tmp_path / "c-00000.records.parquet"
    records_file.write(path, columns_of(6))
    assert len(records_file.read(path, 6)) == 6
    spoil(path)
    with pytest.raises(kind, match=says) as refused:
        records_file.read(path, 6)
    assert str(path) in str(refused.value)


def test_a_prepared_folders_records_are_compared_with_its_manifest(tmp_path: Path) -> None:
    manifest = make_manifest(corpus("a", [[9, 3], [4, 30, 0]], 7))
    for number, part in enumerate(manifest.corpora[0].parts):
        path = tmp_path / part.records_file
        path.parent.mkdir(exist_ok=True)
        records_file.write(path, FILES.read(manifest.corpora[0], number))
    records = records_file.open_records(tmp_path, manifest)
    assert records.check("a") == records.merkle_root("a")
    other = FILES.read(manifest.corpora[0], 1)
    tokens = other.tokens + np.int64(1)
    records_file.write(path, RecordColumns(other.entries, tokens, other.splits))
    with pytest.raises(GovrayError, match=r"a-00001\.records\.parquet"):
        records_file.open_records(tmp_path, manifest).check("a")


def test_the_folder_of_another_run_is_told_by_its_manifest(tmp_path: Path) -> None:
    folders = {}
    for name, parts in {"ours": [[9, 3]], "theirs": [[9, 4]], "renamed": [[9, 3]]}.items():
        of = "b" if name == "renamed" else "a"
        manifest = make_manifest(corpus(of, parts, 7))
        part = manifest.corpora[0].parts[0]
        path = tmp_path / name / part.records_file
        path.parent.mkdir(parents=True)
        records_file.write(path, FILES.read(manifest.corpora[0], 0))
        sealed = seal(manifest, [Subject.of(of, "sha256:" + "00" * 32)], [LocalSigner.generate()])
        (tmp_path / name / MANIFEST_FILE).write_bytes(sealed)
        digest = canonical_json.sha256(Envelope.parse(sealed, where=name).payload)
        folders[name] = (tmp_path / name, manifest, digest)
    ours, manifest, _ = folders["ours"]
    assert records_file.open_records(ours, manifest).check("a")
    for name in ("theirs", "renamed"):
        folder, _, digest = folders[name]
        with pytest.raises(Refused, match=f"holds another manifest, {digest}") as refused:
            records_file.open_records(folder, manifest).check("a")
        assert str(folder) in str(refused.value)
        assert "the model's own run" in str(refused.value)
    # A manifest that cannot be read says nothing: the records themselves decide.
    (ours / MANIFEST_FILE).write_bytes(b"{}")
    assert records_file.open_records(ours, manifest).check("a")
