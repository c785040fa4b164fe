"""Conversations and images out of tables: what becomes a record, and what is named as a flaw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from govray.data.rows import chat, tensor_record
from govray.data.sources import reader
from govray.data.sources.columns import ColumnMapping
from govray.data.sources.objects import find
from govray.data.sources.record import Flaw, SourceRecord
from govray.errors import Malformed
from govray.governance.formats.row_schema import CHAT, RowSchema, image_schema

IMAGES = image_schema((1, 2, 2), 10)
TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def read(path: Path, schema: RowSchema, *columns: str) -> list[SourceRecord | Flaw]:
    mapping = ColumnMapping.parse(columns, schema.run_kind)
    return list(reader.read(find(str(path), None), mapping, schema=schema))


def records(found: list[SourceRecord | Flaw]) -> list[bytes]:
    assert all(isinstance(each, SourceRecord) for each in found), found
    return [each.content for each in found if isinstance(each, SourceRecord)]


def flaws(found: list[SourceRecord | Flaw]) -> list[str]:
    return [f"{each.where}: {each.what}" for each in found if isinstance(each, Flaw)]


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path / "source.parquet")
    return path / "source.parquet"


def jsonl(path: Path, *rows: Any) -> Path:
    (path / "source.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path / "source.jsonl"


def test_conversations_come_from_lists_and_from_json_text(tmp_path: Path) -> None:
    expected = [chat.encode(TALK)]
    assert records(read(parquet(tmp_path, messages=[TALK]), CHAT)) == expected
    assert records(read(parquet(tmp_path, messages=[json.dumps(TALK)]), CHAT)) == expected
    assert records(read(jsonl(tmp_path, {"messages": TALK}), CHAT)) == expected
    turns = jsonl(tmp_path, {"turns": TALK, "id": "x", "language": "en"})
    [found] = read(turns, CHAT, "messages=turns")
    assert isinstance(found, SourceRecord)
    assert found.name.endswith(" x")
    assert found.stated == {"language": ("en",)}
    (tmp_path / "source.jsonl").unlink()
    (tmp_path / "source.parquet").unlink()
    text = json.dumps(TALK).replace('"', '""')
    (tmp_path / "source.csv").write_text(f'messages\n"{text}"\n')
    assert records(read(tmp_path / "source.csv", CHAT)) == expected


def test_flaws_of_conversations_name_the_row(tmp_path: Path) -> None:
    rows = [{"messages": TALK}, {"messages": None}, {"text": "x"}, {"messages": [{"role": "user"}]}]
    assert flaws(read(jsonl(tmp_path, *rows), CHAT)) == [
        "source.jsonl, row 2: there are no messages",
        "source.jsonl, row 3: there are no messages",
        "source.jsonl, row 4: message 1 has no content, or one that is no text",
    ]


UNTRAINED: dict[str, Any] = {
    "tools": [{"name": "f"}], "functions": [{"name": "f"}], "documents": ["x"],
    "chosen": TALK, "rejected": "x",
    "conversations": [{"from": "human", "value": "x"}],
}  # fmt: skip


@pytest.mark.parametrize("name", UNTRAINED)
def test_what_belongs_to_a_conversation_and_is_not_trained_on_is_refused(
    tmp_path: Path, name: str
) -> None:
    beside, alone = {"messages": TALK, name: UNTRAINED[name]}, {name: UNTRAINED[name]}
    told = f"source.jsonl, row 1: it has '{name}': "
    for row in (beside, alone):
        [found] = flaws(read(jsonl(tmp_path, row), CHAT))
        assert found.startswith(told)
    (tmp_path / "source.jsonl").unlink()
    [found] = flaws(read(parquet(tmp_path, **{each: [beside[each]] for each in beside}), CHAT))
    assert f"it has '{name}': " in found
    with pytest.raises(Malformed, match=f"source.parquet: it has '{name}': "):
        read(parquet(tmp_path, **{name: [UNTRAINED[name]]}), CHAT)
    (tmp_path / "source.parquet").unlink()
    # No value states nothing, and who leaves the column out has said so.
    for value in (None, [], "[]", ""):
        assert records(read(jsonl(tmp_path, {"messages": TALK, name: value}), CHAT))
    assert records(read(jsonl(tmp_path, beside), CHAT, f"{name}=")) == [chat.encode(TALK)]
    turns = jsonl(tmp_path, {name: TALK})
    assert records(read(turns, CHAT, f"messages={name}")) == [chat.encode(TALK)]


def image(label: int = 3) -> bytes:
    pixels = np.arange(4, dtype=np.uint8).reshape(1, 2, 2)
    return tensor_record.encode(IMAGES, {"image": pixels, "targets": np.array(label)})


def test_flaws_of_images_name_the_row(tmp_path: Path) -> None:
    good = {"image": [0, 1, 2, 3], "label": 3}
    bad: list[dict[str, Any]] = [
        {"image": [0, 1, 2]}, {"image": [[0, 1, 2, 3]]}, {"image": [0, 1, 2, 256]},
        {"image": [0, 1, 2, -1]}, {"image": [0.5, 1, 2, 3]}, {"image": "AAAA"}, {"image": None},
        {"image": [[0, 1], [2]]}, {"label": 10}, {"label": -1}, {"label": "3"}, {"label": True},
        {"label": None}, {"label": 1 << 70},
    ]  # fmt: skip
    found = read(jsonl(tmp_path, good, *(good | each for each in bad)), IMAGES)
    assert isinstance(found[0], SourceRecord)
    told = flaws(found)
    assert len(told) == len(bad)
    assert "row 2: the image has shape (3,), --image-shape is (1, 2, 2)" in told[0]
    assert "outside 0 to 255" in told[2]
    assert "no bytes and no lists of whole numbers" in told[5]
    assert "the label is 10, the row schema has 10 classes" in told[8]
    assert "the label is no whole number" in told[10]
