"""Tiles: fixed bytes for fixed leaves, every proof that of `merkle`, and nothing taken on trust."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.errors import CouldNotCheck, Damaged, Malformed
from govray.governance.formats import merkle
from govray.platform.store.tiles import TileReader, parse_path, write_tiles
from tests.support.merkle_proofs import consistency_proof, inclusion_proof

LEAVES = [f"leaf {i}".encode() for i in range(70_000)]
NOTE = b"a note, which nothing here reads\n"


class Memory:
    """A folder in memory that counts reads."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.reads: list[str] = []

    def read(self, name: str) -> bytes | None:
        self.reads.append(name)
        return self.files.get(name)

    def replace(self, name: str, data: bytes) -> None:
        self.files[name] = data


def written(count: int) -> Memory:
    folder = Memory()
    assert write_tiles(folder, LEAVES[:count], NOTE) == merkle.root(LEAVES[:count])
    return folder


def test_the_bytes_of_a_small_log_are_these() -> None:
    folder = Memory()
    write_tiles(folder, [b"", b"\x00", b"\x10", b" !"], NOTE)
    # The leaf hashes are those of Certificate Transparency's shared inputs.
    assert {name: data.hex() for name, data in folder.files.items()} == {
        "tile/entries/000.p/4": "0000" + "000100" + "000110" + "00022021",
        "tile/0/000.p/4": "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7"
        "0298d122906dcfc10892cb53a73992fc5b9f493ea4c9badb27b791b4127a7fe7"
        "07506a85fd9dd2f120eb694f86011e5bb4662e5c415a62917033d4a9624487e7",
        "checkpoint": NOTE.hex(),
    }


@pytest.mark.parametrize(
    "path",
    [
        "",
        "checkpoint",
        "tile/0/0",
        "tile/00/000",
        "tile/64/000",
        "tile/0/x000/001",  # a leading element that says nothing
        "tile/0/001/002",
        "tile/0/000.p/0",
        "tile/0/000.p/256",
        "tile/0/000.p/01",
        "tile/0/../checkpoint",
        "tile/entries/../../x",
        "tile/0/000/",
        "tile/-1/000",
        "tile/0/٠٠٠",
    ],
)
def test_another_spelling_is_no_tile(path: str) -> None:
    with pytest.raises(Malformed):
        parse_path(path)


@settings(max_examples=40)
@given(st.data())
def test_roots_and_proofs_are_those_of_the_whole_tree(data: st.DataObject) -> None:
    size = data.draw(st.one_of(st.integers(1, 600), st.sampled_from([255, 256, 257, 511, 512])))
    reader = TileReader(written(size), size, merkle.root(LEAVES[:size]))
    second = data.draw(st.integers(1, size))
    first = data.draw(st.integers(1, second))
    index = data.draw(st.integers(0, second - 1))
    assert reader.root(second) == merkle.root(LEAVES[:second])
    assert reader.inclusion(index, second)[1] == inclusion_proof(LEAVES[:second], index)
    assert reader.consistency_proof(first, second) == consistency_proof(LEAVES[:second], first)
    assert reader.entry(index) == LEAVES[index]
    assert reader.entries(lambda entry: True) == tuple(LEAVES[:size])
    assert reader.entries(lambda entry: entry == LEAVES[index]) == (LEAVES[index],)


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


@given(st.data())
@settings(max_examples=50)
def test_a_changed_byte_never_gives_another_answer(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([5, 256, 300, 520]))
    folder = written(size)
    root = merkle.root(LEAVES[:size])
    name = data.draw(st.sampled_from(sorted(set(folder.files) - {"checkpoint"})))
    position = data.draw(st.integers(0, len(folder.files[name]) - 1))
    folder.files[name] = flipped(folder.files[name], position)
    index = data.draw(st.integers(0, size - 1))
    first = data.draw(st.integers(1, size))
    for ask, truth in (
        (lambda r: r.entry(index), LEAVES[index]),
        (lambda r: r.inclusion(index)[1], inclusion_proof(LEAVES[:size], index)),
        (lambda r: r.consistency_proof(first), consistency_proof(LEAVES[:size], first)),
        (lambda r: r.root(first), merkle.root(LEAVES[:first])),
        (lambda r: r.entries(lambda entry: True), tuple(LEAVES[:size])),
    ):
        try:
            found = ask(TileReader(folder, size, root))
        except Damaged:
            continue
        assert found == truth


def test_without_the_check_a_changed_tile_does_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the tiles alone would have led to a proof of nothing."""
    folder = written(300)
    folder.files["tile/0/000"] = flipped(folder.files["tile/0/000"], 40)
    root = merkle.root(LEAVES[:300])
    with pytest.raises(Damaged):
        TileReader(folder, 300, root).inclusion(0)[1]
    monkeypatch.setattr(merkle, "verify_inclusion", lambda *_: None)
    wrong = TileReader(folder, 300, root).inclusion(0)[1]
    assert wrong != inclusion_proof(LEAVES[:300], 0)
    folder.files["tile/entries/000"] = flipped(folder.files["tile/entries/000"], 4)
    with pytest.raises(Damaged):
        TileReader(folder, 300, root).entries(lambda entry: True)
    monkeypatch.setattr(merkle, "root_of_buffer", lambda _: root)
    assert TileReader(folder, 300, root).entries(lambda entry: True) != tuple(LEAVES[:300])


def test_a_missing_tile_is_no_answer() -> None:
    folder = written(300)
    root = merkle.root(LEAVES[:300])
    del folder.files["tile/entries/000"], folder.files["tile/1/000.p/1"]
    with pytest.raises(CouldNotCheck, match="tile/entries/000"):
        TileReader(folder, 300, root).entry(3)
    with pytest.raises(CouldNotCheck, match=r"tile/1/000\.p/1"):
        TileReader(folder, 300, root).root()


@settings(max_examples=20)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=4))
def test_a_longer_ledger_keeps_the_tiles_of_a_shorter(parts: list[int]) -> None:
    folder, size = Memory(), 0
    for part in parts:
        size += part
        assert write_tiles(folder, LEAVES[:size], NOTE) == merkle.root(LEAVES[:size])
    for name, data in written(size).files.items():
        assert folder.files[name] == data


def test_writing_again_changes_nothing_and_another_ledger_is_refused() -> None:
    folder = written(300)
    before = dict(folder.files)
    write_tiles(folder, LEAVES[:300], NOTE)
    assert folder.files == before
    with pytest.raises(Damaged, match="never changes"):
        write_tiles(folder, [b"another", *LEAVES[1:300]], b"another note")
    assert folder.files == before


@pytest.mark.parametrize("name", ["tile/0/000", "tile/0/001.p/44", "tile/entries/000"])
@pytest.mark.parametrize(
    "left",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: bytes(len(data)),
        lambda data: data[:100] + bytes(len(data) - 100),
        lambda data: bytes(100) + data[100:],
    ],
)
def test_what_a_power_cut_left_is_written_again(name: str, left: Callable[[bytes], bytes]) -> None:
    folder = written(300)
    whole = dict(folder.files)
    folder.files[name] = left(whole[name])
    assert folder.files != whole
    write_tiles(folder, LEAVES[:300], NOTE)
    assert folder.files == whole
