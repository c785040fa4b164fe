"""Tiles: fixed bytes for fixed leaves, every proof that of `merkle`, and nothing taken on trust."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.errors import CouldNotCheck, Damaged, Malformed
from govray.governance.formats import merkle
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.signed_note import sign_checkpoint
from govray.platform.store.tile_storage import LocalTileFolder, TileFolder, tile_folder
from govray.platform.store.tiles import (
    TileName,
    TileReader,
    TileWriter,
    decode_bundle,
    edge,
    encode_bundle,
    encode_index,
    parse_path,
    write_tiles,
)
from tests.support.merkle_proofs import consistency_proof, inclusion_proof

GOLDEN_70_000 = "13488352a4605277e4732b46ccc2da0e93707a6cfa740529ed117132b7326f1a"
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


@pytest.fixture(scope="module")
def large() -> tuple[Memory, bytes]:
    """The standard's own example: a tree of 70,000 entries."""
    folder = Memory()
    return folder, write_tiles(folder, LEAVES, NOTE)


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


def test_the_tiles_of_the_standards_example(large: tuple[Memory, bytes]) -> None:
    """A tree of 70,000: 273 full tiles and one of 112, one full and one of 17, one of 1."""
    names = [n for n in large[0].files if n.startswith("tile/") and "entries" not in n]
    assert len(names) == 273 + 1 + 1 + 1 + 1
    assert {n for n in names if ".p/" in n} == {
        "tile/0/273.p/112",
        "tile/1/001.p/17",
        "tile/2/000.p/1",
    }
    digest = hashlib.sha256()
    for name in sorted(large[0].files):
        digest.update(name.encode() + b"\0" + large[0].files[name])
    assert digest.hexdigest() == GOLDEN_70_000
    assert large[1] == merkle.root(LEAVES)


@pytest.mark.parametrize(
    ("index", "path"),
    [(0, "000"), (999, "999"), (1000, "x001/000"), (1234067, "x001/x234/067")],
)
def test_an_index_is_written_in_threes(index: int, path: str) -> None:
    assert encode_index(index) == path
    assert parse_path(f"tile/3/{path}.p/7") == TileName(3, index, 7)


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


@given(st.integers(0, 10**18), st.integers(1, 256), st.sampled_from([0, 63, "entries"]))
def test_names_come_back(index: int, width: int, level: int | str) -> None:
    name = TileName(level, index, width)
    assert parse_path(name.path) == name


def test_entries_that_are_too_long_have_a_place_of_their_own() -> None:
    long, short = bytes(65_536), bytes(65_535)
    assert encode_bundle([short])[0] == "entries"
    level, data = encode_bundle([b"a", long])
    assert (level, data[:9]) == ("entries32", b"\0\0\0\1a\0\1\0\0")
    folder = Memory()
    root = write_tiles(folder, [b"a", long, b"b"], NOTE)
    assert "tile/entries/000.p/3" not in folder.files
    assert TileReader(folder, 3, root).entry(1) == long
    assert root == merkle.root([b"a", long, b"b"])
    with pytest.raises(Malformed):
        encode_bundle([bytes((1 << 24) + 1)])


@given(st.lists(st.binary(max_size=80), max_size=20), st.integers(0, 200))
def test_a_bundle_comes_back_whole_or_not_at_all(entries: list[bytes], cut: int) -> None:
    level, data = encode_bundle(entries)
    name = TileName(level, 0, len(entries))
    assert decode_bundle(name, data) == tuple(entries)
    if cut < len(data):
        with pytest.raises(Damaged):
            decode_bundle(name, data[:cut])


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


@pytest.mark.parametrize("index", [0, 255, 256, 65_535, 65_536, 69_887, 69_999])
def test_a_proof_takes_few_reads(large: tuple[Memory, bytes], index: int) -> None:
    folder, root = large
    folder.reads.clear()
    proof = TileReader(folder, 70_000, root).inclusion(index)[1]
    assert len(folder.reads) <= 6  # two of each of three levels
    merkle.verify_inclusion(merkle.leaf_hash(LEAVES[index]), index, 70_000, proof, root)


def test_a_proof_of_an_earlier_size_needs_no_tile_of_that_size(
    large: tuple[Memory, bytes],
) -> None:
    reader = TileReader(large[0], 70_000, large[1])
    assert reader.inclusion(3, 65_000)[1] == inclusion_proof(LEAVES[:65_000], 3)
    assert reader.consistency_proof(300, 65_000) == consistency_proof(LEAVES[:65_000], 300)


def test_the_empty_tree_has_its_root() -> None:
    folder = Memory()
    assert write_tiles(folder, [], NOTE) == merkle.EMPTY_ROOT
    assert list(folder.files) == ["checkpoint"]
    assert TileReader(folder, 0, merkle.EMPTY_ROOT).root() == merkle.EMPTY_ROOT


@pytest.mark.parametrize(
    "ask",
    [
        lambda r: r.root(11),
        lambda r: r.inclusion(10)[1],
        lambda r: r.inclusion(-1)[1],
        lambda r: r.inclusion(5, 5)[1],
        lambda r: r.consistency_proof(0, 5),
        lambda r: r.consistency_proof(6, 5),
        lambda r: r.consistency_proof(5, 11),
        lambda r: r.entry(10),
    ],
)
def test_what_the_tree_does_not_have_is_refused(ask) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Malformed):
        ask(TileReader(written(10), 10, merkle.root(LEAVES[:10])))


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
def test_appending_is_writing_all_at_once(parts: list[int]) -> None:
    folder, size = Memory(), 0
    for part in parts:
        writer = TileWriter(folder, size)
        writer.append(LEAVES[size : size + part])
        writer.finish(NOTE)
        size = writer.size
        assert writer.root == merkle.root(LEAVES[:size])
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


@pytest.mark.parametrize("name", ["tile/0/000", "tile/0/001.p/44", "tile/entries/000"])
@pytest.mark.parametrize(
    "other",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1 or 2]),
        lambda data: data[:50] + bytes([data[50] ^ 255]),
        lambda data: data + b"\0",
        lambda data: data[::-1],
    ],
)
def test_what_no_power_cut_leaves_is_refused(name: str, other: Callable[[bytes], bytes]) -> None:
    folder = written(300)
    folder.files[name] = other(folder.files[name])
    before = dict(folder.files)
    with pytest.raises(Damaged, match="never changes"):
        write_tiles(folder, LEAVES[:300], NOTE)
    assert folder.files == before


def test_what_stands_on_disk_is_whole(tmp_path: Path) -> None:
    signer = LocalSigner.generate()
    root = merkle.root(LEAVES[:300])
    note = sign_checkpoint("govray.dev/ledger/r", 300, root, signer)
    write_tiles(LocalTileFolder(tmp_path), LEAVES[:300], note)
    files = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {
        "checkpoint",
        "tile/0/000",
        "tile/0/001.p/44",
        "tile/1/000.p/1",
        "tile/entries/000",
        "tile/entries/001.p/44",
    }
    assert (tmp_path / "checkpoint").read_bytes() == note
    assert {e.path for e in edge(300)} < files


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_by_path_or_url(tmp_path: Path, scheme: str) -> None:
    folder: TileFolder = tile_folder(f"{scheme}{tmp_path}/log")
    assert folder.read("tile/0/000") is None
    write_tiles(folder, LEAVES[:300], NOTE)
    assert TileReader(folder, 300, merkle.root(LEAVES[:300])).entry(299) == LEAVES[299]
    assert folder.read("checkpoint") == NOTE
