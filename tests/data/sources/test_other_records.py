"""Conversations and images out of tables: what becomes a record, and what is named as a flaw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from govray.data.rows import chat, tensor_record
from govray.data.sources.record import SourceRecord
from govray.errors import Malformed
from govray.governance.formats.row_schema import CHAT, RowSchema, image_schema
from tests.support.source_files import flaws, jsonl, read, records, write

IMAGES = image_schema((1, 2, 2), 10)
TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def contents(path: Path, schema: RowSchema, *columns: str) -> list[bytes]:
    return [each.content for each in records(path, *columns, schema=schema)]


def told(path: Path, schema: RowSchema) -> list[str]:
    return [": ".join(each) for each in flaws(path, schema=schema)]


def parquet(path: Path, **columns: Any) -> Path:
    return write(path / "source.parquet", columns)


def rows_of(path: Path, *rows: Any) -> Path:
    return jsonl(path / "source.jsonl", list(rows))


def test_conversations_come_from_lists_and_from_json_text(tmp_path: Path) -> None:
    expected = [chat.encode(TALK)]
    assert contents(parquet(tmp_path, messages=[TALK]), CHAT) == expected
    assert contents(parquet(tmp_path, messages=[json.dumps(TALK)]), CHAT) == expected
    assert contents(rows_of(tmp_path, {"messages": TALK}), CHAT) == expected
    turns = rows_of(tmp_path, {"turns": TALK, "id": "x", "language": "en"})
    [found] = records(turns, "messages=turns", schema=CHAT)
    assert found.name.endswith(" x")
    assert found.stated == {"language": ("en",)}
    (tmp_path / "source.jsonl").unlink()
    (tmp_path / "source.parquet").unlink()
    text = json.dumps(TALK).replace('"', '""')
    (tmp_path / "source.csv").write_text(f'messages\n"{text}"\n')
    assert contents(tmp_path / "source.csv", CHAT) == expected


def test_flaws_of_conversations_name_the_row(tmp_path: Path) -> None:
    rows = [{"messages": TALK}, {"messages": None}, {"text": "x"}, {"messages": [{"role": "user"}]}]
    assert told(rows_of(tmp_path, *rows), CHAT) == [
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
    said = f"source.jsonl, row 1: it has '{name}': "
    for row in (beside, alone):
        [found] = told(rows_of(tmp_path, row), CHAT)
        assert found.startswith(said)
    (tmp_path / "source.jsonl").unlink()
    [found] = told(parquet(tmp_path, **{each: [beside[each]] for each in beside}), CHAT)
    assert f"it has '{name}': " in found
    with pytest.raises(Malformed, match=f"source.parquet: it has '{name}': "):
        read(parquet(tmp_path, **{name: [UNTRAINED[name]]}), schema=CHAT)
    (tmp_path / "source.parquet").unlink()
    # No value states nothing, and who leaves the column out has said so.
    for value in (None, [], "[]", ""):
        assert contents(rows_of(tmp_path, {"messages": TALK, name: value}), CHAT)
    assert contents(rows_of(tmp_path, beside), CHAT, f"{name}=") == [chat.encode(TALK)]
    turns = rows_of(tmp_path, {name: TALK})
    assert contents(turns, CHAT, f"messages={name}") == [chat.encode(TALK)]


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
    source = rows_of(tmp_path, good, *(good | each for each in bad))
    assert isinstance(read(source, schema=IMAGES)[0], SourceRecord)
    said = told(source, IMAGES)
    assert len(said) == len(bad)
    assert "row 2: the image has shape (3,), --image-shape is (1, 2, 2)" in said[0]
    assert "outside 0 to 255" in said[2]
    assert "no bytes and no lists of whole numbers" in said[5]
    assert "the label is 10, the row schema has 10 classes" in said[8]
    assert "the label is no whole number" in said[10]
