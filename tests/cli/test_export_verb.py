"""`export`: each format of a model that verifies, whole or not at all, and of no other model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from govray.evidence.exports.export_format import FORMATS, NAMES, SIGNED
from govray.governance.formats.keys import LocalSigner
from tests.support.all_exports import FOLDERS, export_all
from tests.support.command import Run, write_key
from tests.support.official_validators import NotValid, check_model_signing, check_sigstore
from tests.support.world import World

Check = tuple[Any, ...]


@pytest.fixture
def check(root: Path, at: str) -> Check:
    return ("--trust-root", root, "--at", at)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A P-256 key, with its public key beside it."""
    signer = LocalSigner.generate("ecdsa-p256")
    (tmp_path / "key.pub").write_bytes(signer.public_key.to_pem())
    return write_key(tmp_path / "key.pem", signer)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_all_formats_are_accepted_by_their_tools(
    run: Run, untouched: Path, check: Check, tmp_path: Path
) -> None:
    read = export_all(run, untouched, tmp_path / "out", *check)
    assert list(read) == list(NAMES)
    assert [each.name for each in read["croissant"]] == ["acme", "alpha", "beta", "gamma"]


@pytest.mark.parametrize("name", [NAMES[0], SIGNED])
def test_a_model_that_does_not_verify_is_refused(
    run: Run, model: Path, check: Check, key: Path, tmp_path: Path, name: str
) -> None:
    flip(model / "model.safetensors")
    signing = ("--key", key) if name == SIGNED else ()
    done = run("export", name, model, *signing, *check, code=1)
    assert "step 4 (files)" in done.err
    assert "model.safetensors" in done.err
    assert not (tmp_path / "model.exports").exists()


def test_the_signature_holds_of_each_file(
    run: Run, model: Path, check: Check, key: Path, tmp_path: Path
) -> None:
    run("export", SIGNED, model, "--key", key, *check)
    signed = (model, tmp_path / "model.exports" / "model.sig", tmp_path / "key.pub")
    check_model_signing(*signed)
    file = "governance/policy.dsse.json"
    flip(model / file)
    with pytest.raises(NotValid, match=rf"Hash mismatch for .*{file}"):
        check_model_signing(*signed)


def test_the_signature_holds_of_no_other_file_and_no_other_key(
    run: Run, model: Path, check: Check, key: Path, tmp_path: Path
) -> None:
    (model / "NOTES.md").write_text("for people")
    said = run("export", SIGNED, model, "--key", key, *check).out
    assert "NOT SIGNED  NOTES.md" in said
    signed = (model, tmp_path / "model.exports" / "model.sig", tmp_path / "key.pub")
    with pytest.raises(NotValid, match=r"Extra files found.*NOTES\.md"):
        check_model_signing(*signed)
    check_model_signing(*signed, "--ignore_unsigned_files")
    other = tmp_path / "other.pub"
    other.write_bytes(LocalSigner.generate("ecdsa-p256").public_key.to_pem())
    with pytest.raises(NotValid, match="Key mismatch"):
        check_model_signing(*signed[:2], other, "--ignore_unsigned_files")
    bundle = json.loads(signed[1].read_bytes())
    envelope = bundle["dsseEnvelope"]
    envelope["payload"] = envelope["payload"][:-8] + "AAAA" + envelope["payload"][-4:]
    signed[1].write_text(json.dumps(bundle))
    with pytest.raises(NotValid):
        check_model_signing(*signed, "--ignore_unsigned_files")


def test_a_key_of_another_kind_is_refused_with_the_way_out(
    run: Run, untouched: Path, check: Check, tmp_path: Path
) -> None:
    key = write_key(tmp_path / "ed25519.pem", LocalSigner.generate())
    out = ("--out", tmp_path / "out")
    said = run("export", SIGNED, untouched, "--key", key, *out, *check, code=2).err
    assert "model signing knows no ed25519 keys" in said
    assert "--algorithm ecdsa-p256" in said
    assert not (tmp_path / "out").exists()


def test_the_key_may_stand_in_the_environment(
    run: Run, untouched: Path, check: Check, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ("--out", key.parent / "out")
    assert "GOVRAY_KEY" in run("export", SIGNED, untouched, *out, *check, code=2).err
    monkeypatch.setenv("GOVRAY_KEY", str(key))
    told = run("export", SIGNED, untouched, *out, *check, "--json").json
    assert len(told["keyid"]) == 64


def test_a_key_for_what_is_not_signed_is_refused(
    run: Run, untouched: Path, check: Check, key: Path
) -> None:
    said = run("export", "spdx", untouched, "--key", key, *check, code=2).err
    assert "only model-signing takes a key" in said


def test_bundles_say_which_key_signed_each_of_them(
    run: Run, world: World, untouched: Path, check: Check, tmp_path: Path
) -> None:
    key = world.keys.operator.public_key
    out = ("--out", tmp_path / "out")
    told = run("export", "sigstore", untouched, *out, *check, "--json").json
    assert (told["files"], told["keyid"]) == ([f"{key.keyid}.sigstore.json"], None)
    check_sigstore((tmp_path / "out" / "sigstore" / told["files"][0]).read_bytes())
    said = run("export", "sigstore", untouched, "--force", *out, *check).out
    assert f"{key.keyid}, named {key.openssh_fingerprint}" in said
    # Another export's folder is not taken for one of bundles.
    (tmp_path / "out" / "sigstore" / "mine.json").write_text("keep")
    refused = run("export", "sigstore", untouched, "--force", *out, *check, code=2).err
    assert "'mine.json', which is no export" in refused


def test_an_unknown_format_is_refused_with_those_there_are(run: Run, untouched: Path) -> None:
    said = run("export", "pdf", untouched, code=2).err
    assert all(name in said for name in NAMES)


def test_the_help_names_every_format(run: Run) -> None:
    said = "".join(run("export", "--help").out.split())
    assert all(name in said for name in NAMES)


def test_nothing_is_written_into_the_model(run: Run, model: Path, check: Check) -> None:
    said = run("export", "spdx", model, "--out", model / "exports", *check, code=2).err
    assert "inside the model folder" in said
    run("verify", model, *check)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_there_is_replaced_only_if_asked(
    run: Run, model: Path, check: Check, tmp_path: Path, name: str
) -> None:
    written = tmp_path / "model.exports" / FORMATS[name].place

    def content() -> dict[str, bytes]:
        files = sorted(written.iterdir()) if name in FOLDERS else [written]
        return {each.name: each.read_bytes() for each in files}

    run("export", name, model, *check)
    first = content()
    assert "already exists" in run("export", name, model, *check, code=2).err
    run("export", name, model, "--force", *check)
    assert content() == first  # the bytes repeat
    assert not [each for each in written.parent.iterdir() if each.name.startswith(".")]


def test_a_folder_of_somebody_else_is_not_replaced(
    run: Run, model: Path, check: Check, tmp_path: Path
) -> None:
    mine = tmp_path / "model.exports" / "croissant" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("keep")
    said = run("export", "croissant", model, "--force", *check, code=2).err
    assert "'mine.txt', which is no export" in said
    assert mine.read_text() == "keep"


def test_a_folder_is_whole_or_as_it_was(
    run: Run, model: Path, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("export", "croissant", model, *check)
    folder = tmp_path / "model.exports" / "croissant"
    (folder / "beta.croissant.json").write_text("of an earlier model")
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name.startswith("gamma"):
            raise OSError(28, "No space left on device")
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        said = run("export", "croissant", model, "--force", *check, code=2).err
    assert "No space left" in said
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before
    assert [each.name for each in folder.parent.iterdir()] == ["croissant"]
    run("export", "croissant", model, "--force", *check)
    assert (folder / "beta.croissant.json").read_bytes() != before["beta.croissant.json"]
