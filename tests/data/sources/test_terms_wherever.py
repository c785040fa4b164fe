"""Terms count wherever a source states them, and text stays as it is: each case was wrong once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from govray.data.sources.columns import ColumnMapping, ColumnsSeen
from govray.data.sources.objects import Format, find
from govray.data.sources.reader import read
from govray.data.sources.record import Flaw, SourceRecord
from govray.errors import GovrayError

TEXTS = ["one ordinary line", "another ordinary line"]
Write = Callable[[Path, dict[str, list[Any]]], None]


def records(
    source: Path, *columns: str, format: Format | None = None, seen: ColumnsSeen | None = None
) -> list[SourceRecord | Flaw]:
    found = find(str(source), format)
    return list(read(found, ColumnMapping.parse(columns), seen=seen))


def stated(source: Path, attribute: str, *columns: str) -> list[tuple[str, ...]]:
    found = records(source, *columns)
    assert all(isinstance(each, SourceRecord) for each in found)
    return [each.stated.get(attribute, ()) for each in found if isinstance(each, SourceRecord)]


def texts(source: Path, format: Format | None = None) -> list[str]:
    return [
        each.content.decode()
        for each in records(source, format=format)
        if isinstance(each, SourceRecord)
    ]


def refused(do: Callable[[], object]) -> str:
    with pytest.raises(GovrayError) as caught:
        do()
    return f"{caught.value} {caught.value.do}"


def parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    pq.write_table(pa.table(columns), path)


def csv(path: Path, columns: dict[str, list[Any]]) -> None:
    pyarrow.csv.write_csv(pa.table(columns), path)


def arrow(path: Path, columns: dict[str, list[Any]]) -> None:
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def jsonl(path: Path, columns: dict[str, list[Any]]) -> None:
    rows = zip(*columns.values(), strict=True)
    named = (dict(zip(columns, row, strict=True)) for row in rows)
    path.write_text("".join(json.dumps(each) + "\n" for each in named))


@pytest.mark.parametrize("attribute", ["license", "jurisdiction", "sensitivity"])
@pytest.mark.parametrize("write", [parquet, csv, arrow, jsonl])
def test_a_column_that_a_later_file_has_counts(
    tmp_path: Path, write: Write, attribute: str
) -> None:
    write(tmp_path / f"a.{write.__name__}", {"text": TEXTS})
    write(tmp_path / f"b.{write.__name__}", {"text": TEXTS, attribute: ["X", "Y"]})
    assert stated(tmp_path, attribute) == [(), (), ("X",), ("Y",)]


@pytest.mark.parametrize("name", ["License", "licence", "licenses", "spdx_id", "meta"])
@pytest.mark.parametrize("write", [parquet, arrow, jsonl])
def test_a_column_that_seems_to_state_terms_is_read_or_left_out_by_word(
    tmp_path: Path, write: Write, name: str
) -> None:
    values: list[Any] = [{"license": "MIT"}] * 2 if name == "meta" else ["MIT"] * 2
    path = "meta.license" if name == "meta" else name
    write(tmp_path / f"a.{write.__name__}", {"text": TEXTS, name: values})
    assert f"--column license={path}" in refused(lambda: records(tmp_path))
    assert stated(tmp_path, "license", f"license={path}") == [("MIT",), ("MIT",)]
    assert stated(tmp_path, "license", "license=") == [(), ()]


def test_folders_state_terms(tmp_path: Path) -> None:
    folder = tmp_path / "license=GPL-3.0-only%20OR%20MIT" / "date=2026-01-01"
    folder.mkdir(parents=True)
    parquet(folder / "p0.parquet", {"text": TEXTS})
    assert stated(tmp_path, "license") == [("GPL-3.0-only OR MIT",)] * 2
    assert stated(tmp_path, "license", "license=") == [(), ()]
    parquet(folder / "p1.parquet", {"text": TEXTS, "license": ["MIT", "MIT"]})
    assert stated(tmp_path, "license")[2:] == [("MIT", "GPL-3.0-only OR MIT")] * 2


@pytest.mark.parametrize(
    ("table", "other"), [("a.jsonl", "README.md"), ("a.csv", "_SUCCESS"), ("a.tsv", "b.jsonl")]
)
def test_tables_beside_other_files_are_asked_about(tmp_path: Path, table: str, other: str) -> None:
    (tmp_path / table).write_text('{"text": "x", "license": "MIT"}\n')
    (tmp_path / other).write_text("about these data\n")
    assert "--format" in refused(lambda: records(tmp_path))
    assert len(texts(tmp_path, "files")) == 2  # by word
