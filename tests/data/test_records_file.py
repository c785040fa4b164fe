"""Records files: what is written is read, and what is not such a file is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.data import records_file
from govray.errors import GovrayError
from govray.governance.formats.record_columns import ManifestRecord, RecordColumns
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


def test_a_prepared_folders_records_are_compared_with_its_manifest(tmp_path: Path) -> None:
    manifest = make_manifest(corpus("a", [[9, 3], [4, 30, 0]], 7))
    for number, part in enumerate(manifest.corpora[0].parts):
        path = tmp_path / part.records_file
        path.parent.mkdir(exist_ok=True)
        records_file.write(path, FILES.read(manifest.corpora[0], number))
    records = records_file.open_records(tmp_path, manifest)
    assert records.check()["a"] == records.merkle_root("a")
    other = FILES.read(manifest.corpora[0], 1)
    tokens = other.tokens + np.int64(1)
    records_file.write(path, RecordColumns(other.entries, tokens, other.splits))
    with pytest.raises(GovrayError, match=r"a-00001\.records\.parquet"):
        records_file.open_records(tmp_path, manifest).check()
