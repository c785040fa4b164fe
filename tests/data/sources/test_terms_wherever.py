"""Terms count wherever a source states them, and text stays as it is: each case was wrong once."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from govray.data.sources.columns import ColumnsSeen
from govray.data.sources.objects import Format
from govray.errors import GovrayError, Malformed, UsageError
from tests.support.source_files import read, records, write

TEXTS = ["one ordinary line", "another ordinary line"]


def stated(source: Path, attribute: str, *columns: str) -> list[tuple[str, ...]]:
    return [each.stated.get(attribute, ()) for each in records(source, *columns)]


def texts(source: Path, format: Format | None = None) -> list[str]:
    return [each.content.decode() for each in records(source, format=format)]


def refused(do: Callable[[], object]) -> str:
    with pytest.raises(GovrayError) as caught:
        do()
    return f"{caught.value} {caught.value.do}"


def tar(records: Iterator[tuple[str, str]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in records:
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


@pytest.mark.parametrize("attribute", ["license", "jurisdiction", "sensitivity"])
@pytest.mark.parametrize("kind", ["parquet", "csv", "arrow", "jsonl"])
def test_a_column_that_a_later_file_has_counts(tmp_path: Path, kind: str, attribute: str) -> None:
    write(tmp_path / f"a.{kind}", {"text": TEXTS})
    write(tmp_path / f"b.{kind}", {"text": TEXTS, attribute: ["X", "Y"]})
    assert stated(tmp_path, attribute) == [(), (), ("X",), ("Y",)]


def test_files_that_disagree_are_told(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"text": TEXTS})
    write(tmp_path / "b.parquet", {"text": TEXTS, "license": ["MIT", "MIT"]})
    seen = ColumnsSeen()
    read(tmp_path, seen=seen)
    assert seen.differing() == [
        {"attributes": ["license", "text"], "objects": 1, "first": "b.parquet"},
        {"attributes": ["text"], "objects": 1, "first": "a.parquet"},
    ]


def test_a_later_file_whose_column_has_another_type_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"text": TEXTS, "license": ["MIT", "MIT"]})
    write(tmp_path / "b.parquet", {"text": TEXTS, "license": [1, 2]})
    assert "b.parquet" in refused(lambda: read(tmp_path))


@pytest.mark.parametrize("name", ["License", "licence", "licenses", "spdx_id", "meta"])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_a_column_that_seems_to_state_terms_is_read_or_left_out_by_word(
    tmp_path: Path, kind: str, name: str
) -> None:
    values: list[Any] = [{"license": "MIT"}] * 2 if name == "meta" else ["MIT"] * 2
    path = "meta.license" if name == "meta" else name
    write(tmp_path / f"a.{kind}", {"text": TEXTS, name: values})
    assert f"--column license={path}" in refused(lambda: read(tmp_path))
    assert stated(tmp_path, "license", f"license={path}") == [("MIT",), ("MIT",)]
    assert stated(tmp_path, "license", "license=") == [(), ()]


def test_other_names_beside_terms_that_are_read_are_no_matter(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", {"text": TEXTS, "license": ["MIT"] * 2, "license_url": ["u"] * 2})
    assert stated(tmp_path, "license") == [("MIT",), ("MIT",)]


def test_folders_state_terms(tmp_path: Path) -> None:
    folder = tmp_path / "license=GPL-3.0-only%20OR%20MIT" / "date=2026-01-01"
    folder.mkdir(parents=True)
    write(folder / "p0.parquet", {"text": TEXTS})
    assert stated(tmp_path, "license") == [("GPL-3.0-only OR MIT",)] * 2
    assert stated(tmp_path, "license", "license=") == [(), ()]
    write(folder / "p1.parquet", {"text": TEXTS, "license": ["MIT", "MIT"]})
    assert stated(tmp_path, "license")[2:] == [("MIT", "GPL-3.0-only OR MIT")] * 2


def test_a_folder_that_seems_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "Licence=MIT"
    folder.mkdir()
    (folder / "a.txt").write_text("text")
    assert "'Licence' seems to state the license" in refused(lambda: read(tmp_path))


@pytest.mark.parametrize(
    ("table", "other"), [("a.jsonl", "README.md"), ("a.csv", "_SUCCESS"), ("a.tsv", "b.jsonl")]
)
def test_tables_beside_other_files_are_asked_about(tmp_path: Path, table: str, other: str) -> None:
    (tmp_path / table).write_text('{"text": "x", "license": "MIT"}\n')
    (tmp_path / other).write_text("about these data\n")
    assert "--format" in refused(lambda: read(tmp_path))
    assert len(texts(tmp_path, "files")) == 2  # by word


@pytest.mark.parametrize("name", ["a.bz2", "a.xz", "a.zip", "a.txt.gz", "a.pdf"])
def test_what_is_no_text_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "b.txt").write_text("text")
    (tmp_path / name).write_bytes(b"\x00\x01")
    assert name in refused(lambda: read(tmp_path))
    assert name in refused(lambda: read(tmp_path / name))


def test_feather_is_arrow(tmp_path: Path) -> None:
    write(tmp_path / "a.feather", {"text": TEXTS})
    assert texts(tmp_path) == TEXTS


def test_a_quote_in_tsv_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text('id\ttext\n1\t"opens and never\n2\tplain\n3\tcloses" it\n')
    assert texts(tmp_path) == ['"opens and never', "plain", 'closes" it']


def test_csv_is_strict_and_keeps_every_character(tmp_path: Path) -> None:
    good = tmp_path / "good.csv"
    good.write_text('\ufeffid,text\n1,"a ""word"", and\nmore"\n2,back\\slash\n\n3,\n', newline="")
    assert texts(good) == ['a "word", and\nmore', "back\\slash", ""]
    bad = tmp_path / "bad.csv"
    bad.write_text('id,text\n1,plain\n2,"a \\"word\\" with backslashes"\n')
    with pytest.raises(Malformed, match="after row 1"):
        records(bad)


def test_joined_tars_are_refused(tmp_path: Path) -> None:
    one, two = (tar(iter([(f"{i}.txt", TEXTS[i])])) for i in (0, 1))
    (tmp_path / "good.tar").write_bytes(one + bytes(10240))
    assert texts(tmp_path / "good.tar") == TEXTS[:1]
    for behind in (two, bytes(1 << 20) + two):
        (tmp_path / "joined.tar").write_bytes(one + behind)
        with pytest.raises(Malformed, match="behind the end mark"):
            records(tmp_path / "joined.tar")


def test_a_byte_order_mark_is_no_part_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps({"text": TEXTS[0]}).encode())
    assert texts(tmp_path) == TEXTS[:1]


def test_content_left_out_is_a_usage_error(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"text": TEXTS})
    write(tmp_path / "b.parquet", {"words": TEXTS})
    with pytest.raises(UsageError, match="no column 'text'"):
        records(tmp_path)
