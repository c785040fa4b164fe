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
from tests.support.flipped import flip
from tests.support.official_validators import NotValid, check_model_signing

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
    done = run("model", "export", name, model, *signing, *check, code=1)
    assert "step 4 (files)" in done.err
    assert "model.safetensors" in done.err
    assert not (tmp_path / "model.exports").exists()


def test_the_signature_holds_of_each_file(
    run: Run, model: Path, check: Check, key: Path, tmp_path: Path
) -> None:
    run("model", "export", SIGNED, model, "--key", key, *check)
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
    said = run("model", "export", SIGNED, model, "--key", key, *check).out
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


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_there_is_replaced_only_if_asked(
    run: Run, model: Path, check: Check, tmp_path: Path, name: str
) -> None:
    written = tmp_path / "model.exports" / FORMATS[name].place

    def content() -> dict[str, bytes]:
        files = sorted(written.iterdir()) if name in FOLDERS else [written]
        return {each.name: each.read_bytes() for each in files}

    run("model", "export", name, model, *check)
    first = content()
    assert "already exists" in run("model", "export", name, model, *check, code=2).err
    run("model", "export", name, model, "--force", *check)
    assert content() == first  # the bytes repeat
    assert not [each for each in written.parent.iterdir() if each.name.startswith(".")]
