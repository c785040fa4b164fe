"""Checkpoints: exact, whole or absent, and refused after any change of a byte."""

import hashlib
import json
import os
import resource
import shutil
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.engine.model.gpt import GPT
from govray.errors import Damaged, Malformed, UsageError
from govray.governance.formats import canonical_json
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.commit_folder import MANIFEST, commit, load
from govray.train.checkpoint.stored_tensors import contents, tensors_of
from tests.support.fork import KILLED, die, in_fork

TENSORS = {
    "b": torch.arange(6.0).view(2, 3),
    "a": torch.tensor(3, dtype=torch.int64),
    "c": torch.zeros(0, 4, dtype=torch.bfloat16),
}
FILES = {"model.safetensors": TENSORS, "state/plan.json": b'{"step":3}', "empty": b""}


@pytest.fixture
def committed(tmp_path):
    folder = tmp_path / "checkpoint"
    commit(folder, contents(FILES))
    return folder


def everything_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_what_was_committed_is_loaded(tmp_path):
    folder = tmp_path / "runs" / "a" / "checkpoint"
    digest = commit(folder, contents(FILES))
    loaded = load(folder)
    assert loaded.digest == digest
    assert loaded.files["state/plan.json"] == b'{"step":3}'
    tensors = tensors_of(loaded, "model.safetensors")
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_the_format_is_pinned(committed):
    """Golden bytes: checkpoints outlive the version that wrote them."""
    header = (
        b'{"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},'
        b'"b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},'
        b'"c":{"dtype":"BF16","shape":[0,4],"data_offsets":[32,32]}} '
    )
    model = struct.pack("<Q", len(header)) + header + struct.pack("<q6f", 3, *range(6))
    assert (committed / "model.safetensors").read_bytes() == model
    digests = [hashlib.sha256(data).hexdigest() for data in (b"", model, b'{"step":3}')]
    manifest = (
        f'{{"files":{{"empty":{{"digest":"sha256:{digests[0]}","size":0}},'
        f'"model.safetensors":{{"digest":"sha256:{digests[1]}","size":{len(model)}}},'
        f'"state/plan.json":{{"digest":"sha256:{digests[2]}","size":10}}}},'
        f'"schema":"govray.dev/checkpoint/v1"}}'
    )
    assert (committed / MANIFEST).read_text() == manifest


def test_tied_and_sliced_tensors_are_stored_whole(tmp_path):
    torch.manual_seed(1)
    model = GPT(1, 32, 4, 5, tied=True)
    big = torch.arange(100.0)
    files = {"model": model.state_dict(), "slices": {"x": big[:3], "y": big[1:4], "t": big[::40]}}
    commit(tmp_path / "c", contents(files))
    loaded = load(tmp_path / "c")
    fresh = GPT(1, 32, 4, 5, tied=True)
    fresh.load_state_dict(tensors_of(loaded, "model"))
    assert torch.equal(fresh.head.weight, model.head.weight)
    slices = tensors_of(loaded, "slices")
    assert [slices[name].tolist() for name in "xyt"] == [[0, 1, 2], [1, 2, 3], [0, 40, 80]]


@given(data=st.data())
@settings(max_examples=250, deadline=None)
def test_any_change_of_a_file_is_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("changed") / "c"
    commit(folder, contents(FILES))
    name = data.draw(st.sampled_from(["model.safetensors", "state/plan.json", MANIFEST]))
    content = bytearray((folder / name).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "grow"])):
        case "flip":
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del content[place:]
        case "grow":
            content += data.draw(st.binary(min_size=1, max_size=8))
    (folder / name).write_bytes(content)
    with pytest.raises(Malformed):
        load(folder)


def link(folder):
    content = (folder / "state/plan.json").rename(folder.parent / "elsewhere")
    (folder / "state/plan.json").symlink_to(content)


def link_folder(folder):
    target = (folder / "state").rename(folder.parent / "elsewhere")
    (folder / "state").symlink_to(target)


def pipe(folder):
    (folder / "empty").unlink()
    os.mkfifo(folder / "empty")


def edit_manifest(change):
    def mutate(folder):
        manifest = json.loads((folder / MANIFEST).read_bytes())
        change(manifest)
        (folder / MANIFEST).write_bytes(canonical_json.encode(manifest))

    return mutate


def named(name):
    return edit_manifest(
        lambda manifest: manifest["files"].update({name: manifest["files"]["empty"]})
    )


def loose_manifest(folder):
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (lambda folder: (folder / "empty").unlink(), "empty: missing"),
        (lambda folder: (folder / "state" / "more").touch(), "more: not in manifest.json"),
        (lambda folder: (folder / "empty").rename(folder / "void"), "empty: missing"),
        (link, "plan.json: is not a regular file"),
        (link_folder, "state: is not a regular file"),
        (pipe, "empty: is not a regular file"),
        (lambda folder: (folder / MANIFEST).unlink(), "never committed"),
        (loose_manifest, "canonical"),
        (named("../secret"), "entry of '../secret' is malformed"),
        (named("/etc/hostname"), "entry of '/etc/hostname' is malformed"),
        (edit_manifest(lambda m: m["files"].pop("empty")), "empty: not in manifest.json"),
        (edit_manifest(lambda m: m.update(extra=1)), "expected the fields"),
        (edit_manifest(lambda m: m.update(schema="v2")), "not a govray.dev/checkpoint/v1"),
        (edit_manifest(lambda m: m["files"]["empty"].update(size=True)), "'empty' is malformed"),
        (edit_manifest(lambda m: m["files"]["empty"].update(size=-1)), "'empty' is malformed"),
        (edit_manifest(lambda m: m["files"]["empty"].update(size=1)), "has 0 bytes"),
        (edit_manifest(lambda m: m["files"]["empty"].update(digest="md5")), "is malformed"),
        (edit_manifest(lambda m: m["files"]["empty"].update(mode=1)), "'empty' is malformed"),
    ],
)
def test_what_was_not_committed_is_refused_by_name(committed, mutate, message):
    mutate(committed)
    with pytest.raises(Malformed, match=message):
        load(committed)


def test_nothing_is_parsed_before_every_digest_is_checked(committed):
    """The manifest vouches for bytes, so even a broken safetensors file loads as bytes."""
    garbage = b"\xff" * 16
    folder = committed.with_name("garbage")
    commit(folder, {"model.safetensors": garbage})
    loaded = load(folder)
    assert loaded.files["model.safetensors"] == garbage
    with pytest.raises(Malformed, match="not a safetensors file"):
        tensors_of(loaded, "model.safetensors")
    with pytest.raises(Malformed, match="no such file"):
        tensors_of(loaded, "other")


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/./b", "", ".", "a\\b", "a\0", MANIFEST])
def test_names_stay_inside(tmp_path, name):
    with pytest.raises(UsageError, match="no path inside"):
        commit(tmp_path / "c", {name: b""})
    assert everything_below(tmp_path) == []


def test_a_checkpoint_is_never_overwritten(committed):
    with pytest.raises(UsageError, match="already exists"):
        commit(committed, {"x": b""})
    assert load(committed).files.keys() == FILES.keys()


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    """The kernel's own refusal, through a limit on the size of files."""

    def fills():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(UsageError, match=r"written: File too large\. Nothing of it was kept"):
            commit(tmp_path / "c", {"a": b"x" * 1000, "b": b"x" * 200_000})

    assert in_fork(fills) == 0
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize("kill_at", ["in a file", "first file", "manifest", "rename"])
def test_a_kill_leaves_nothing_that_loads(tmp_path, kill_at):
    write = commit_folder.write

    def dying_write(*arguments):
        write(*arguments)
        die()

    def commits():
        module, name, dying = {
            "in a file": (os, "fsync", die),
            "first file": (commit_folder, "write", dying_write),
            "manifest": (commit_folder, "publish", die),
            "rename": (os, "rename", die),
        }[kill_at]
        setattr(module, name, dying)
        commit(tmp_path / "c", {"a": b"1", "b": b"2"})

    assert in_fork(commits) == KILLED
    (partial,) = tmp_path.iterdir()
    expected = {
        "in a file": {"a"},
        "first file": {"a"},
        "manifest": {"a", "b"},
        "rename": {"a", "b", MANIFEST},
    }
    assert {path.name for path in partial.iterdir()} == expected[kill_at]
    (tmp_path / "link").symlink_to(partial)
    for name in (partial, tmp_path / "link"):
        with pytest.raises(Malformed, match="never committed"):
            load(name)
    with pytest.raises(UsageError):
        load(tmp_path / "c")
    # The control: it is the name alone that refuses the one that is complete.
    if kill_at == "rename":
        assert load(partial.rename(tmp_path / "renamed")).files == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("kill_at", ["manifest", "files"])
def test_a_kill_in_a_deletion_leaves_nothing_that_loads(committed, kill_at):
    unlink, seen = os.unlink, []

    def dying_unlink(*arguments, **options):
        unlink(*arguments, **options)
        seen.append(1)
        if len(seen) == 2:
            die()

    def removes():
        module, name, dying = {
            "manifest": (shutil, "rmtree", die),
            "files": (os, "unlink", dying_unlink),
        }[kill_at]
        setattr(module, name, dying)
        commit_folder.remove(committed)

    assert in_fork(removes) == KILLED
    assert not (committed / MANIFEST).exists()
    with pytest.raises(Damaged, match="never committed"):
        load(committed)
    commit_folder.remove(committed)
    assert not committed.exists()


def test_several_writers_fill_one_commit(tmp_path):
    """The seam for shards of several ranks: each writes its names, one publishes them all."""
    folder = tmp_path / "c"
    partial = commit_folder.stage(folder)
    entries = {}
    for rank in range(2):
        name = f"shards/rank{rank}.safetensors"
        entries[name] = commit_folder.write(
            partial, name, contents({name: {"w": torch.full((3,), rank)}})[name]
        )
    digest = commit_folder.publish(partial, folder, entries)
    loaded = load(folder)
    assert loaded.digest == digest
    for rank in range(2):
        assert tensors_of(loaded, f"shards/rank{rank}.safetensors")["w"].tolist() == [rank] * 3
