"""Files of a model folder that no digest covers: what may be loaded fails, the rest is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.errors import VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.verify.verifier import verify
from tests.support.uncovered import (
    ARCHIVE,
    FOLDERS,
    HARMLESS,
    LOADABLE,
    MARKS,
    PICKLE,
    content,
)
from tests.support.world import AT, World, write


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rule_for_what_may_be_loaded(folder: str) -> None:
    for name in LOADABLE:
        for spelling in (name, name.upper(), name.lower()):
            assert not model_folder.inert(folder + spelling), spelling


@pytest.mark.parametrize("name", ["modeling_gpt.py", "sub/deep/MODEL.PKL"])
def test_what_may_be_loaded_fails_the_folder(world: World, model: Path, name: str) -> None:
    verify(model, trust_root=world.root, at=AT)
    write(model / name, b"x")
    with pytest.raises(VerificationFailed, match=r"step 4 \(files\): .*load or execute") as refusal:
        verify(model, trust_root=world.root, at=AT)
    assert refusal.value.where == name
    assert "--allow-uncovered" in str(refusal.value)
    # The registry's verbs and the index have no such option, and show this text too.
    assert "Move it away" in str(refusal.value)
    assert "takes no exception" in str(refusal.value)
    # An empty file is refused too: it can be filled.
    write(model / name, b"")
    with pytest.raises(VerificationFailed, match="step 4"):
        verify(model, trust_root=world.root, at=AT)


def test_what_is_harmless_is_told_and_passes(world: World, model: Path) -> None:
    # Some of these are one file where the file system knows no case.
    named = [name for name in HARMLESS if name not in ("readme.md", "Readme")]
    for name in named:
        write(model / name, content(name))
    found = verify(model, trust_root=world.root, at=AT)
    assert (found.uncovered, found.loadable) == (tuple(sorted(named)), ())


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("README.md", ARCHIVE),
        ("README.md", b"# A model\n" + ARCHIVE),
        ("notes.txt", PICKLE),
        (".gitattributes", ARCHIVE),
        ("plot.png", ARCHIVE),
        ("plot.png", MARKS[".gif"]),
        ("plot.png", MARKS[".png"] + ARCHIVE),
        ("card.md", b"x" * (model_folder.MAX_INERT + 1)),
    ],
)
def test_a_harmless_name_hides_no_other_content(
    world: World, model: Path, name: str, data: bytes
) -> None:
    write(model / name, content(name))
    verify(model, trust_root=world.root, at=AT)  # control
    write(model / name, data)
    with pytest.raises(VerificationFailed, match=r"step 4 \(files\): .*load or execute"):
        verify(model, trust_root=world.root, at=AT)
    found = verify(model, trust_root=world.root, at=AT, allow_uncovered=[name])
    assert found.loadable == (name,)


def test_each_file_that_may_be_loaded_has_to_be_allowed(world: World, model: Path) -> None:
    write(model / "model.gguf", b"x")
    write(model / "tools" / "convert.py", b"x")
    write(model / "README.md", b"x")

    def uncovered(*globs: str) -> tuple[str, ...]:
        return verify(model, trust_root=world.root, at=AT, allow_uncovered=globs).uncovered

    for globs in [(), ("*.gguf",), ("*.py",), ("*.GGUF", "*.py"), ("tools",), ("convert.py",)]:
        with pytest.raises(VerificationFailed, match="step 4"):
            uncovered(*globs)
    everything = ("README.md", "model.gguf", "tools/convert.py")
    assert uncovered("*.gguf", "tools/*") == everything
    assert uncovered("model.gguf", "tools/convert.py") == everything
    assert uncovered("*") == everything


@pytest.mark.parametrize(
    "name",
    [
        "adapters/evil/adapter_model.safetensors",
        "adapters/README.md",
        "adapters/acme/adapter_model.bin",
        "Adapters/acme/readme.md",
        "governance/notes.md",
        "GOVERNANCE/x.png",
        "Config.json",
        "MODEL.safetensors",
        "model.SafeTensors",
    ],
)
def test_nothing_is_allowed_where_attested_files_stand(
    world: World, model: Path, name: str
) -> None:
    write(model / name, b"x")
    with pytest.raises(VerificationFailed, match=r"step 4 .*stands where one that is would"):
        verify(model, trust_root=world.root, at=AT, allow_uncovered=["*", name])


def test_a_link_is_refused_whatever_it_is_called(world: World, model: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", b"x")
    for name in ("README.md", ".git", "modeling_gpt.py"):
        (model / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(VerificationFailed, match="symbolic link"):
            verify(model, trust_root=world.root, at=AT, allow_uncovered=["*"])
        (model / name).unlink()
    verify(model, trust_root=world.root, at=AT)


def test_control_without_the_rule_a_module_beside_the_model_passes(
    world: World, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(model / "modeling_gpt.py", b"import os")
    monkeypatch.setattr(model_folder, "inert", lambda name: True)
    assert verify(model, trust_root=world.root, at=AT).uncovered == ("modeling_gpt.py",)
