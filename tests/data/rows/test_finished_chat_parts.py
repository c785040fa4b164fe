"""A part of conversations that was packed before is used again with its loss targets, or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from govray.data import corpus, records_file
from govray.data.packing import Item, Packed, Packing
from govray.data.rows import chat
from govray.data.rows.chat import ChatTokenizer
from govray.data.tokenizer import ByteTokenizer
from govray.governance.formats.row_schema import CHAT
from govray.governance.record.prepare_manifest import Reserve, RowTargets
from govray.storage.draft_folder import DraftFolder


@pytest.fixture
def packing(tmp_path: Path) -> tuple[Packing, Item]:
    said = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "because"}]
    records = ((f"{i}", chat.encode(said * (1 + i))) for i in range(9))
    built = corpus.build(tmp_path / "corpora", "c", records)
    draft = DraftFolder.begin(tmp_path / "prepared", "inputs", "00")
    (draft.folder / "class=000000000000").mkdir()
    [source] = corpus.part_files(built.folder)
    item = Item("c", 0, source, "class=000000000000/c-00000.parquet", built.commitment)
    reserve = Reserve(share=0.0, salt="00" * 16)
    return Packing(draft, ChatTokenizer(ByteTokenizer()), 16, reserve, CHAT), item


def packed(packing: Packing, item: Item) -> Packed:
    found = packing.result(item)
    assert isinstance(found, Packed), found
    return found


def test_a_finished_part_is_not_packed_again(
    packing: tuple[Packing, Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = packed(*packing)
    assert first.part.targets is not None
    assert 0 < first.part.targets.total < first.part.rows * 16
    monkeypatch.setattr(Packing, "_pack", None)
    assert packed(*packing) == first


@pytest.mark.parametrize("change", ["none", "other"])
def test_one_whose_counts_are_gone_or_others_is_packed_again(
    packing: tuple[Packing, Item], change: str
) -> None:
    first = packed(*packing)
    path = packing[0].folder / first.part.records_file
    columns = records_file.read(path, first.records)
    assert columns.row_targets is not None
    path.unlink()
    other = None if change == "none" else columns.row_targets[::-1].copy()
    records_file.write(path, replace(columns, row_targets=other))
    assert packed(*packing) == first
    again = records_file.read(path, first.records).row_targets
    assert again is not None
    assert RowTargets.of(again) == first.part.targets
