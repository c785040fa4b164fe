"""Every format gives the same records, and what is wrong with a source is named."""

from __future__ import annotations

import json
import os
import random
import re
import tarfile
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.data.sources import reader
from govray.data.sources.columns import ColumnMapping
from govray.data.sources.objects import Format, find
from govray.data.sources.record import Flaw, SourceRecord, normalise
from govray.errors import Malformed, UsageError
from tests.support.source_files import FORMATS, ROWS, arrow_stream, jsonl, parquet, tar
from tests.support.table import each_row


def read(
    path: Path, *columns: str, format: Format | None = None, **options: Any
) -> list[SourceRecord | Flaw]:
    return list(reader.read(find(str(path), format), ColumnMapping.parse(columns), **options))


def records(path: Path, *columns: str, **options: Any) -> list[SourceRecord]:
    found = read(path, *columns, **options)
    assert not [each for each in found if isinstance(each, Flaw)]
    return [each for each in found if isinstance(each, SourceRecord)]


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


def test_text_files_are_records_as_they_are(tmp_path: Path) -> None:
    contents = {"a.py": b"import os\n", "b": b"\x00\xff", "c/d.xml": b"a,b", ".git/config": b"-"}
    for name, content in (contents | {"c/.hidden": b"secret"}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    os.symlink(tmp_path, tmp_path / "loop")
    del contents[".git/config"]
    assert {each.name: each.content for each in records(tmp_path)} == contents
    assert [each.name for each in records(tmp_path)] == sorted(contents)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(texts=st.lists(TEXT, max_size=8), kind=st.sampled_from([*FORMATS]))
def test_any_text_comes_back(texts: list[str], kind: str) -> None:
    rows = [{"text": text, "n": i} for i, text in enumerate(texts)]
    schema = pa.schema([("text", pa.string()), ("n", pa.int64())])
    table = pa.Table.from_pylist(rows, schema=schema)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.source_files.ROWS", rows)
        patch.setattr("tests.support.source_files.TABLE", table)
        path = Path(folder, kind)
        if kind == "rows.parquet":
            parquet(path, table)
        elif kind in ("rows.tar", "rows.tgz"):
            tar(path, rows, mode="w:gz" if kind == "rows.tgz" else "w")
        else:
            FORMATS[kind](path)
        assert [each.content.decode() for each in records(path)] == texts


@pytest.mark.parametrize("name", ["data.parquet", "data.jsonl", "data.arrow"])
def test_a_column_may_have_another_name_or_be_a_member(tmp_path: Path, name: str) -> None:
    rows = [
        {"body": "one", "url": "https://a", "meta": {"license": "MIT", "langs": ["en", "de"]}},
        {"body": "two", "url": "https://b", "meta": None},
    ]
    table = pa.Table.from_pylist(rows)
    if name.endswith("jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name.endswith("arrow"):
        with pa.ipc.new_stream(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    else:
        parquet(tmp_path / name, table)
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


@each_row(
    ("options", "says"),
    [
        (["tex=body"], "names no attribute"),
        (["text"], "names no attribute"),
        (["text=a", "text=b"], "second time"),
        (["text="], "cannot be left out"),
    ],
)
def test_a_wrong_mapping_is_usage(options: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ColumnMapping.parse(options)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.binary()])
def test_text_of_any_arrow_type_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    parquet(tmp_path / "a.parquet", pa.table({"text": pa.array(["x"], type=kind)}))
    parquet(tmp_path / "b.parquet", pa.table({"text": pa.array(["y"]).dictionary_encode()}))
    assert [each.content for each in records(tmp_path)] == [b"x", b"y"]


def test_a_column_without_any_value_states_nothing(tmp_path: Path) -> None:
    """As one of text whose values are all null; it was refused, with advice to name it again."""
    table = {"text": ["x"], "license": pa.nulls(1), "url": pa.nulls(1)}
    parquet(tmp_path / "a.parquet", pa.table(table))
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
    parquet(tmp_path / "data.parquet", pa.table(table))
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


def flaws(path: Path, **options: Any) -> list[tuple[str, str]]:
    return [(f.where, f.what) for f in read(path, **options) if isinstance(f, Flaw)]


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


def test_rows_of_a_table_that_cannot_be_records_are_named(tmp_path: Path) -> None:
    text = pa.array([b"good", b"\xff", None, b"x" * 101], type=pa.binary()).cast(
        pa.string(), safe=False
    )
    parquet(tmp_path / "a.parquet", pa.table({"text": text}))
    assert flaws(tmp_path, limit=100) == [
        ("a.parquet, row 2", "the text is not UTF-8 at byte 0"),
        ("a.parquet, row 3", "there is no text"),
        ("a.parquet, row 4", "the text has 101 bytes, the limit is 100"),
    ]


def test_ragged_and_undecodable_rows_of_csv_are_named(tmp_path: Path) -> None:
    rows = [b"text,license", b"a,MIT", b"one", b'"\xff",MIT', b"1,2,3", b"b,MIT"]
    (tmp_path / "a.csv").write_bytes(b"\n".join(rows))
    found = read(tmp_path)
    assert [each.where for each in found] == [f"a.csv, row {row}" for row in range(1, 6)]
    assert [isinstance(each, Flaw) for each in found] == [False, True, True, True, False]
    (tmp_path / "a.csv").write_bytes(b"\n".join([*rows, b'"open,MIT']))
    with pytest.raises(Malformed, match="after row 5"):
        read(tmp_path)
    (tmp_path / "a.csv").write_bytes(b'text\n"' + b"x" * (2 << 20) + b'"\n')
    with pytest.raises(Malformed, match="larger than the limit"):
        read(tmp_path, limit=1 << 20)


def test_a_sample_of_a_tar_that_is_too_large_or_twice_there_is_named(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", [{"text": "x" * 101}, {"text": "good"}])
    assert flaws(tmp_path, limit=100) == [
        ("a.tar, row 1", "'shard/000.txt' has 101 bytes, the limit is 100")
    ]
    tar(tmp_path / "a.tar", [{"text": "a"}])
    with tarfile.open(tmp_path / "a.tar", "a") as file:
        file.addfile(tarfile.TarInfo("shard/000.txt"))
    assert "there twice" in flaws(tmp_path)[0][1]


def test_a_file_above_the_limit_is_named_without_being_read(tmp_path: Path) -> None:
    (tmp_path / "large.txt").touch()
    os.truncate(tmp_path / "large.txt", 1 << 40)
    (tmp_path / "small.txt").write_text("x")
    assert flaws(tmp_path, limit=100) == [
        ("large.txt", "the file has 1,099,511,627,776 bytes, the limit is 100")
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


def test_the_order_is_that_of_the_names(tmp_path: Path) -> None:
    for name in ("a", "a!b", "a-b", "B", "a/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        jsonl(tmp_path / f"{name}.jsonl")
    names = [each.name for each in records(tmp_path)]
    assert names == sorted(names)
    assert len(names) == 20


@each_row(
    ("source", "says"),
    [
        ("hdfs://x/y", "give an object store's URL"),
        ("s3:/bucket", r"did you mean s3://…\?"),
        ("S3://bucket/data", r"did you mean s3://…\?"),
        ("s4://bucket/data", r"did you mean s3://…\?"),
        ("file:///data", "give an object store's URL"),
        ("fsspec+memory://bucket/data", r"URL \(s3, gs, gcs, abfs, abfss://"),
        ("s3://AKIA:hush@bucket/data", "no place in a URL"),
        ("s3://", "names no bucket"),
        ("absent", "no such file or folder"),
    ],
)
def test_what_is_no_source_is_usage(source: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        find(source)


def test_a_folder_of_tables_beside_others_has_to_be_asked_about(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet")
    (tmp_path / "README.md").write_text("about")
    with pytest.raises(UsageError, match="parquet files beside others"):
        find(str(tmp_path))
    found = find(str(tmp_path), "parquet")
    assert ([each.name for each in found.objects], found.left_out) == (
        ["a.parquet"],
        ("README.md",),
    )
    assert len(find(str(tmp_path), "files").objects) == 2
    with pytest.raises(UsageError, match="no file is of format csv"):
        find(str(tmp_path), "csv")
    (tmp_path / "rows.json").write_text('{"text": "a"}\n')
    assert [each.content for each in records(tmp_path, format="jsonl")] == [b"a"]


def test_columns_of_plain_files_are_usage(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UsageError, match="plain files have no columns"):
        read(tmp_path, "text=body")


@given(st.text())
def test_normalisation_is_settled_after_once(text: str) -> None:
    once = normalise(text, ("newlines", "nfc"))
    assert "\r" not in once
    assert normalise(once, ("newlines", "nfc")) == once
    assert normalise(text, ()) == text


def test_text_is_changed_only_where_asked(tmp_path: Path) -> None:
    text = "e\u0301\r\nend\r"
    parquet(tmp_path / "a.parquet", pa.table({"text": [text]}))
    assert records(tmp_path)[0].content == text.encode()
    assert records(tmp_path, normalisation=["newlines"])[0].content == "e\u0301\nend\n".encode()
    assert records(tmp_path, normalisation=["nfc"])[0].content == "\u00e9\r\nend\r".encode()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "b.txt").write_bytes(b"\xff")
    assert "cannot be normalised" in flaws(tmp_path / "files", normalisation=["nfc"])[0][1]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.arrow"])
def test_memory_does_not_grow_with_rows(tmp_path: Path, name: str) -> None:
    def peak(rows: int) -> int:
        table = pa.table({"text": [f"{i:01000}" for i in range(rows)]})
        if name == "a.parquet":
            pq.write_table(table, tmp_path / name, row_group_size=500)
        elif name == "a.arrow":
            with pa.ipc.new_stream(tmp_path / name, table.schema) as writer:
                writer.write_table(table, max_chunksize=500)
        else:
            (tmp_path / name).write_text(
                "".join(json.dumps({"text": text.as_py()}) + "\n" for text in table["text"])
            )
        tracemalloc.start()
        assert sum(1 for _ in reader.read(find(str(tmp_path)))) == rows
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(8000) < 1.5 * peak(1000)
