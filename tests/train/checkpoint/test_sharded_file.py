"""Files in parts: the same tensors and bytes as one file, for any number of writers and readers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from govray.errors import Damaged
from govray.governance.formats import canonical_json
from govray.train.checkpoint import commit_folder, stored_tensors, whole_file
from govray.train.checkpoint.sharded_file import INDEX, ShardIndex, cut, part_name
from govray.train.checkpoint.stored_tensors import contents, held_rows, tensors_of
from tests.support.flipped import flip

FILE = "model.safetensors"
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


@given(st.integers(0, 40), st.integers(1, 9))
def test_the_cut_is_torchs(rows: int, world: int) -> None:
    chunks = torch.arange(rows).chunk(world)
    for rank in range(world):
        expected = chunks[rank].tolist() if rank < len(chunks) else []
        assert list(cut(rows, rank, world)) == expected
    assert [row for rank in range(world) for row in cut(rows, rank, world)] == list(range(rows))


def committed(folder: Path, tensors: Mapping[str, Tensor], sharded: set[str], world: int) -> Path:
    """A commit of these tensors, each rank's rows in its part."""
    target = folder / "checkpoint_000000001"
    staged = commit_folder.stage(target)
    rows = {name: len(tensors[name]) for name in sharded}
    entries = {INDEX: commit_folder.write(staged, INDEX, ShardIndex(world, {FILE: rows}).encode())}
    for rank in range(world):
        part = {}
        for name, tensor in tensors.items():
            if name in sharded:
                own = cut(len(tensor), rank, world)
                part[name] = tensor[own.start : own.stop]
            elif rank == 0:
                part[name] = tensor
        name = part_name(FILE, rank, world)
        entries[name] = commit_folder.write(staged, name, contents({name: part})[name])
    commit_folder.publish(staged, target, entries)
    return target


@st.composite
def models(draw: st.DrawFn) -> tuple[dict[str, Tensor], set[str]]:
    """Tensors of any shape and type, and which of them are sharded."""
    tensors: dict[str, Tensor] = {}
    for name in draw(st.sets(st.sampled_from("abcdé"))):
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        count = 1
        for size in shape:
            count *= size
        numbers = draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
        dtype = draw(st.sampled_from(DTYPES))
        tensors[name] = torch.tensor(numbers, dtype=dtype).reshape(shape)
    cuttable = sorted(name for name, tensor in tensors.items() if tensor.ndim)
    return tensors, set(draw(st.lists(st.sampled_from(cuttable)))) if cuttable else set()


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


@settings(max_examples=40, deadline=None)
@given(models(), st.integers(1, 5), st.integers(1, 5))
def test_parts_are_the_whole_file_for_any_number_of_readers(
    model: tuple[dict[str, Tensor], set[str]], writers: int, readers: int
) -> None:
    tensors, sharded = model
    whole = b"".join(bytes(piece) for piece in stored_tensors.pieces(tensors, where=FILE))
    with tempfile.TemporaryDirectory() as name:
        found = commit_folder.open_commit(committed(Path(name), tensors, sharded, writers))
        assert found.names == {FILE}
        assert whole_file.content(found, FILE) == whole
        assert whole_file.entry(found, FILE).digest == canonical_json.sha256(whole)
        copy = Path(name) / "copy"
        assert whole_file.copy(found, FILE, copy) == whole_file.entry(found, FILE)
        assert copy.read_bytes() == whole
        joined = tensors_of(found, FILE)
        assert joined.keys() == tensors.keys()
        assert all(same(joined[name], tensors[name]) for name in tensors)
        index = found.index
        assert index is not None
        for rank in range(readers):
            held = held_rows(
                found, index, FILE, lambda _, rows, rank=rank: cut(rows, rank, readers)
            )
            assert held.keys() == tensors.keys()
            for name, tensor in tensors.items():
                own = cut(len(tensor), rank, readers) if name in sharded else None
                assert same(held[name], tensor if own is None else tensor[own.start : own.stop])


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {"w": torch.rand(6, 4), "b": torch.rand(5), "step": torch.tensor(3.0)}


@pytest.fixture
def folder(tmp_path: Path, tensors: dict[str, Tensor]) -> Path:
    return committed(tmp_path, tensors, {"w", "b"}, 3)


def test_a_reader_opens_only_the_parts_with_its_rows(folder: Path) -> None:
    """At the same number of ranks: its own, and the first for what is not sharded."""
    found = commit_folder.open_commit(folder)
    assert found.index is not None
    read: list[str] = []

    class Noting(dict[str, bytes]):
        def __getitem__(self, name: str) -> bytes:
            read.append(name)
            return found.files[name]

    noting = replace(found, files=Noting())
    held_rows(noting, found.index, FILE, lambda _, rows: cut(rows, 2, 3))
    assert read == [part_name(FILE, 0, 3), part_name(FILE, 2, 3)]


def test_a_flipped_bit_in_any_part_is_found(folder: Path, tmp_path: Path) -> None:
    for rank in range(3):
        path = folder / part_name(FILE, rank, 3)
        before = path.read_bytes()
        flip(path)
        found = commit_folder.open_commit(folder)
        for use in (
            lambda found: whole_file.entry(found, FILE),
            lambda found: whole_file.copy(found, FILE, tmp_path / "copy"),
            lambda found: whole_file.content(found, FILE),
            lambda found: tensors_of(found, FILE),
        ):
            with pytest.raises(Damaged, match=f"0000{rank}-of-00003.*differs from its digest"):
                use(found)
        path.write_bytes(before)


def test_the_control_without_the_digests_other_weights_come_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = whole_file.content(commit_folder.open_commit(folder), FILE)
    flip(folder / part_name(FILE, 1, 3))
    monkeypatch.setattr(whole_file.HashedFile, "require_intact", lambda self: None)
    found = whole_file.content(commit_folder.open_commit(folder), FILE)
    assert found is not None
    assert found != expected
    assert len(found) == len(expected or b"")


@pytest.mark.parametrize("gone", [part_name(FILE, 2, 3), INDEX])
def test_a_manifest_without_it_does_not_load_either(
    folder: Path, tmp_path: Path, gone: str
) -> None:
    """Files and manifest agree, and a part, or what says how they fit, was never written."""
    whole = commit_folder.load(folder)
    files = {name: data for name, data in whole.files.items() if name != gone}
    commit_folder.commit(tmp_path / "less", files)
    with pytest.raises(Damaged, match="parts"):
        commit_folder.open_commit(tmp_path / "less")


@pytest.mark.parametrize("key", ["rows", "dtype", "trailing", "absent"])
def test_parts_that_do_not_fit_together_are_refused(
    tensors: dict[str, Tensor], tmp_path: Path, key: str
) -> None:
    """Committed in good order, and wrong: by a writer of another version, say."""
    whole = commit_folder.load(committed(tmp_path, tensors, {"w", "b"}, 2))
    other = {"w": torch.zeros(3, 4), "b": torch.zeros(2)}
    if key == "rows":
        other["w"] = torch.zeros(2, 4)
    elif key == "dtype":
        other["w"] = other["w"].bfloat16()
    elif key == "trailing":
        other["w"] = torch.zeros(3, 1)  # would be broadcast
    else:
        del other["b"]
    files = dict(whole.files) | {part_name(FILE, 1, 2): other}
    commit_folder.commit(tmp_path / "odd", contents(files))
    found = commit_folder.open_commit(tmp_path / "odd")
    with pytest.raises(Damaged):
        tensors_of(found, FILE)
    with pytest.raises(Damaged):
        whole_file.entry(found, FILE)
