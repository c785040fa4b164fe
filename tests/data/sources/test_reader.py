"""Every format gives the same records, and what is wrong with a source is named."""

from __future__ import annotations

import json
import os
import random
import re
import time
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from govray.data.sources import reader
from govray.data.sources.objects import find
from govray.data.sources.record import SourceRecord, normalise
from govray.errors import Malformed, UsageError
from tests.support.source_files import (
    FORMATS,
    ROWS,
    arrow_stream,
    flaws,
    jsonl,
    read,
    records,
    write,
)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("within", ["file", "folder"])
def test_every_format_gives_the_same_records(tmp_path: Path, name: str, within: str) -> None:
    FORMATS[name](tmp_path / name)
    found = records(tmp_path / name if within == "file" else tmp_path)
    assert [each.content.decode() for each in found] == [row["text"] for row in ROWS]
    assert [each.name for each in found] == [
        f"{name}#{number:012} {row['id']}" for number, row in enumerate(ROWS, 1)
    ]
    assert [dict(each.stated) for each in found] == [
        {"license": (row["license"],)} if row["license"] else {} for row in ROWS
    ]


def test_a_folder_that_datasets_saved_is_read_split_by_split(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        folder = tmp_path / split
        folder.mkdir()
        files = [{"filename": "data-00000-of-00001.arrow"}]
        (folder / "state.json").write_text(json.dumps({"_data_files": files}))
        arrow_stream(folder / "data-00000-of-00001.arrow")
        (folder / "cache-123.arrow").write_bytes(b"left by a map()")
    found = records(tmp_path)
    assert [each.stated["split"] for each in found] == [("test",)] * 4 + [("train",)] * 4
    assert len(records(tmp_path / "train")) == 4
    (folder / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(Malformed, match=r"names 'data-00000-of-00001\.arrow', which is not"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["data.parquet", "data.jsonl", "data.arrow"])
def test_a_column_may_have_another_name_or_be_a_member(tmp_path: Path, name: str) -> None:
    rows = [
        {"body": "one", "url": "https://a", "meta": {"license": "MIT", "langs": ["en", "de"]}},
        {"body": "two", "url": "https://b", "meta": None},
    ]
    write(tmp_path / name, {column: [row[column] for row in rows] for column in rows[0]})
    columns = ("text=body", "license=meta.license", "language=meta.langs")
    one, two = records(tmp_path, *columns)
    assert one.name == f"{name}#000000000001 https://a"
    assert dict(one.stated) == {
        "url": ("https://a",),
        "license": ("MIT",),
        "language": ("en", "de"),
    }
    assert (two.content, dict(two.stated)) == (b"two", {"url": ("https://b",)})
    assert "license" not in records(tmp_path, *columns[:1], "license=")[0].stated


def test_a_column_without_any_value_states_nothing(tmp_path: Path) -> None:
    """As one of text whose values are all null; it was refused, with advice to name it again."""
    write(tmp_path / "a.parquet", {"text": ["x"], "license": pa.nulls(1), "url": pa.nulls(1)})
    [found] = records(tmp_path)
    assert (found.content, dict(found.stated)) == (b"x", {})


@pytest.mark.parametrize(
    ("columns", "table", "says"),
    [
        ((), {"body": ["a"]}, r"data\.parquet: no column 'text'.*There are: body"),
        (("text=bdy",), {"body": ["a"]}, "no column 'bdy'"),
        (("id=key",), {"text": ["a"]}, "no column 'key' for the attribute 'id'"),
        ((), {"text": [1]}, "'text' is of type int64"),
        ((), {"text": [["a"]]}, "'text' is of type list"),
        ((), {"text": ["a"], "license": [1.5]}, "'license' is of type double"),
        ((), {"text": pa.nulls(1)}, "column 'text' has no value at all, so no row has the text"),
        (("license=meta.l",), {"text": ["a"], "meta": [{"m": "x"}]}, "no column 'meta.l'"),
    ],
)
def test_a_column_that_is_missing_or_of_another_type_is_named(
    tmp_path: Path, columns: tuple[str, ...], table: dict[str, list[Any]], says: str
) -> None:
    write(tmp_path / "data.parquet", table)
    with pytest.raises(UsageError, match=says):
        read(tmp_path, *columns)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,text\na,b\n")
    with pytest.raises(UsageError, match="2 columns have the name 'text'"):
        read(tmp_path)


def cuts(path: Path) -> Iterator[int]:
    """Cut a file at many places, one after the other."""
    data = path.read_bytes()
    # What a tar is padded with may be cut.
    end = len(data.rstrip(b"\0")) if path.suffix == ".tar" else len(data)
    for cut in random.Random(path.name).sample(range(end), min(end, 150)):
        path.write_bytes(data[:cut])
        yield cut


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"rows.jsonl", "rows.csv"}))
def test_a_file_that_was_cut_is_never_read_as_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    FORMATS[name](path)
    for _ in cuts(path):
        with pytest.raises(Malformed, match=re.escape(str(path))):
            read(path)


def test_a_line_that_was_cut_is_no_record(tmp_path: Path) -> None:
    jsonl(tmp_path / "rows.jsonl")
    whole = records(tmp_path)
    for _ in cuts(tmp_path / "rows.jsonl"):
        found = read(tmp_path)
        kept = [each for each in found if isinstance(each, SourceRecord)]
        assert kept == whole[: len(kept)]
        assert len(found) <= len(kept) + 1


def test_lines_that_cannot_be_records_are_named(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good", "license": "MIT"}',
        b"",
        b'{"text": "cut',
        b'{"text": "\xff"}',
        b'["text"]',
        b'{"text": 12}',
        b'{"body": "x"}',
        b'{"text": "a", "license": {"id": "MIT"}}',
        b'{"text": "a", "license": "MIT", "license": "GPL-3.0-only"}',
        b'{"text": "\\ud800"}',
        b'{"text": "' + b"x" * 101 + b'"}',
        b'{"text": "' + b"x" * 5000 + b'"}',
        b'{"text": "also good"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    found = dict(flaws(tmp_path, limit=100))
    expected = {
        3: "not JSON",
        4: "not UTF-8 at byte 10",
        5: "no JSON object",
        6: "the text is a number",
        7: "there is no text",
        8: "the license is an object",
        9: "a key is there twice",
        10: "half of a surrogate pair",
        11: "the text has 101 bytes, the limit is 100",
        12: "the line has more than 800 bytes",
    }
    assert found.keys() == {f"a.jsonl, row {row}" for row in expected}
    for row, what in expected.items():
        assert what in found[f"a.jsonl, row {row}"]
    assert [r.content for r in read(tmp_path, limit=100) if isinstance(r, SourceRecord)] == [
        b"good",
        b"also good",
    ]


@pytest.mark.parametrize(
    "disturb",
    [
        lambda folder: (folder / "a.jsonl").write_text('{"text": "other"}\n'),
        lambda folder: (folder / "b.jsonl").write_text('{"text": "other"}\n'),
        lambda folder: (folder / "c.jsonl").write_text('{"text": "new"}\n'),
        lambda folder: (folder / "b.jsonl").unlink(),
        lambda folder: os.replace(folder / "b.jsonl", folder / "a.jsonl"),
    ],
    ids=["read", "not yet read", "added", "removed", "replaced"],
)
def test_a_source_that_changes_is_refused(
    tmp_path: Path, disturb: Callable[[Path], object]
) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        jsonl(tmp_path / name)
    reading: Iterator[Any] = reader.read(find(str(tmp_path)))
    next(reading)
    disturb(tmp_path)
    with pytest.raises(UsageError, match=r"changed while it was read|No such file"):
        list(reading)


def test_text_is_changed_only_where_asked(tmp_path: Path) -> None:
    text = "e\u0301\r\nend\r"
    write(tmp_path / "a.parquet", {"text": [text]})
    assert records(tmp_path)[0].content == text.encode()
    assert records(tmp_path, normalisation=["newlines"])[0].content == "e\u0301\nend\n".encode()
    assert records(tmp_path, normalisation=["nfc"])[0].content == "\u00e9\r\nend\r".encode()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "b.txt").write_bytes(b"\xff")
    assert "cannot be normalised" in flaws(tmp_path / "files", normalisation=["nfc"])[0][1]


def test_marks_in_a_row_are_put_in_order_and_all_stay() -> None:
    """In order of their classes, Python puts n marks in the time of n squared."""
    marks = "\u0300\u0327\u0903\u0344\u1d165\u0300"
    for count in (5, 30, 200):
        text = "é" + marks * count
        assert normalise(text, ["nfc"]) == unicodedata.normalize("NFC", text)
    began = time.process_time()
    assert len(normalise("a" + "\u0300\u0327" * 200_000, ["nfc"])) == 400_000
    assert time.process_time() - began < 5


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.arrow"])
def test_memory_does_not_grow_with_rows(tmp_path: Path, name: str) -> None:
    def peak(rows: int) -> int:
        text = [f"{i:01000}" for i in range(rows)]
        write(tmp_path / name, {"text": text}, at_once=500)
        tracemalloc.start()
        assert sum(1 for _ in reader.read(find(str(tmp_path)))) == rows
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(8000) < 1.5 * peak(1000)
