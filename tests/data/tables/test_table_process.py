"""Tables are decoded within bounds of memory, and the rows are those of the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from govray.data.sources.objects import DiskFolder, SourceObject
from govray.data.tables import table_process
from govray.data.tables.table_process import _Process
from govray.data.tables.table_reader import Raw, Table
from govray.errors import Malformed

LIMIT = 1 << 20
MIB = 1 << 20
COLUMNS = {"text": "text"}


@pytest.fixture(autouse=True)
def _bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(table_process, "BYTES", 256 * MIB)
    yield
    while _Process._idle:
        _Process._idle.pop()._end()


def written(folder: Path, text: list[str]) -> SourceObject:
    path = folder / "t.parquet"
    places = {each: place for place, each in enumerate(dict.fromkeys(text))}
    column = pa.DictionaryArray.from_arrays(
        pa.array([places[each] for each in text], pa.int32()), pa.array([*places])
    )
    table = pa.table({"text": column})
    pq.write_table(
        table, path, compression="zstd", write_statistics=False, store_schema=False,
        dictionary_pagesize_limit=1 << 30,
    )  # fmt: skip
    home = DiskFolder(folder)
    return SourceObject(path.name, home, home.stamp(path.name))


def read(found: SourceObject) -> Iterator[Raw]:
    return Table(found, "parquet", LIMIT).rows(COLUMNS)


@pytest.mark.slow
def test_a_small_file_of_much_is_read_in_little(tmp_path: Path) -> None:
    found = written(tmp_path, ["a" * (8 * MIB)] * 40)
    assert found.stamp.size < 1000
    # The control: what it decodes to, where nothing bounds it.
    [whole] = table_process.decoded_batches(found, "parquet", ["text"], 256)
    assert whole.nbytes > 320 * MIB
    process = _Process.take(LIMIT)
    process.give_back(whole=True)
    assert [len(raw["text"]) for _, raw in read(found) if isinstance(raw, dict)] == [8 * MIB] * 40
    [last] = _Process._idle  # of eight rows at a time; the first was told that there is no memory
    status = Path(f"/proc/{last._process.pid}/status").read_text()
    [peak] = (int(each.split()[1]) for each in status.splitlines() if each.startswith("VmHWM"))
    assert peak << 10 < 320 * MIB


@pytest.mark.slow
def test_a_row_that_does_not_fit_ends_the_table(tmp_path: Path) -> None:
    found = written(tmp_path, ["short", "a" * (300 * MIB)])
    rows = read(found)
    with pytest.raises(Malformed, match=r"t\.parquet: cannot be read .* more than 264 MiB"):
        list(rows)


@pytest.mark.slow
def test_a_decoder_that_dies_takes_no_row_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[_Process] = []

    def take(limit: int) -> _Process:
        made.append(_Process(limit))
        return made[-1]

    monkeypatch.setattr(_Process, "take", take)
    text = [f"{number:05}" for number in range(100_000)]
    rows = read(written(tmp_path, text))
    before = [next(rows) for _ in range(3)]
    made[-1]._process.kill()
    told = [raw["text"] for _, raw in [*before, *rows] if isinstance(raw, dict)]
    assert told == [each.encode() for each in text]


def test_one_process_reads_table_after_table(tmp_path: Path) -> None:
    found = written(tmp_path, ["x", "y"])
    for _ in range(3):
        assert [raw for _, raw in read(found)] == [{"text": b"x"}, {"text": b"y"}]
    [idle] = _Process._idle
    next(rows := read(found))
    rows.close()  # the rest of an answer is nobody's
    assert idle._process.poll() is not None
