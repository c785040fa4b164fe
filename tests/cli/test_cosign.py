"""Signing in turns: an operator of two of three keys, none of which meets another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope, sign_payload
from govray.governance.formats.keys import LocalSigner
from govray.governance.verify import cosign as cosigning
from tests.support.command import Run, write_key
from tests.support.committee import Committee, by_payload
from tests.support.flipped import flip
from tests.support.witnessing import signed
from tests.support.world import write


@pytest.fixture(scope="module")
def committee() -> Committee:
    return Committee()


@pytest.fixture
def folder(committee: Committee, tmp_path: Path) -> Path:
    """What the first key made."""
    return committee.deploy(tmp_path / "m", attestation=by_payload)


@pytest.fixture
def check(committee: Committee, tmp_path: Path, at: str) -> tuple[Any, ...]:
    (tmp_path / "root.json").write_bytes(committee.root)
    return ("--trust-root", tmp_path / "root.json", "--at", at)


@pytest.fixture
def key(committee: Committee, tmp_path: Path) -> Path:
    return write_key(tmp_path / "second.pem", committee.second)


def test_two_of_three_sign_in_turns(
    run: Run, committee: Committee, folder: Path, check: tuple[Any, ...], key: Path, tmp_path: Path
) -> None:
    assert "signed by 1 of 2 distinct keys" in run("verify", folder, *check, code=1).err
    told = run("model", "cosign", folder, "--key", key, *check, "--json").json
    assert (told["signatures"], told["threshold"], told["complete"]) == (2, 2, True)
    assert told["added"] == [model_folder.MANIFEST, model_folder.ATTESTATION]
    first = run("verify", folder, *check, "--json").json
    assert len(first["keyids"]) == 2
    # The same key again changes nothing; the third one adds, and pins and witnesses hold.
    before = {name: (folder / name).read_bytes() for name in told["added"]}
    assert run("model", "cosign", folder, "--key", key, *check, "--json").json["added"] == []
    assert {name: (folder / name).read_bytes() for name in told["added"]} == before
    write(folder / model_folder.replay_file("auditor"), signed(committee, folder))
    assert run("verify", folder, *check, "--json").json["assuranceLevel"] == "replayChecked"
    third = write_key(tmp_path / "third.pem", committee.third)
    assert "3 of 2 signatures" in run("model", "cosign", folder, "--key", third, *check).out
    last = run("verify", folder, *check, "--json").json
    assert last["attestation"] == first["attestation"]
    assert last["assuranceLevel"] == "replayChecked"
    assert len(last["keyids"]) == 3


def test_who_signs_has_looked(
    run: Run, committee: Committee, folder: Path, check: tuple[Any, ...], key: Path, tmp_path: Path
) -> None:
    weights = folder / model_folder.WEIGHTS
    flip(weights)
    before = (folder / model_folder.ATTESTATION).read_bytes()
    assert "step 4" in run("model", "cosign", folder, "--key", key, *check, code=1).err
    stranger = write_key(tmp_path / "stranger.pem", LocalSigner.generate())
    flip(weights)
    assert (
        "is not of operator"
        in run("model", "cosign", folder, "--key", stranger, *check, code=1).err
    )
    auditor = write_key(tmp_path / "auditor.pem", committee.keys.auditor)
    run("model", "cosign", folder, "--key", auditor, *check, code=1)
    assert (folder / model_folder.ATTESTATION).read_bytes() == before
    run("model", "cosign", tmp_path / "nothing", "--key", key, *check, code=3)


@pytest.mark.parametrize("change", ["hint", "signature", "payload"])
def test_the_manifest_has_no_spare_bytes(
    run: Run,
    committee: Committee,
    folder: Path,
    check: tuple[Any, ...],
    key: Path,
    change: str,
) -> None:
    """Pinned by its statement, so every other byte of its file must be a signer's."""
    run("model", "cosign", folder, "--key", key, *check)
    path = folder / model_folder.MANIFEST
    envelope = Envelope.parse(path.read_bytes())
    if change == "signature":
        path.write_bytes(envelope.cosign([LocalSigner.generate()]))
    elif change == "hint":
        value: Any = canonical_json.parse(path.read_bytes())
        value["signatures"][0]["keyid"] = "somebody"
        path.write_bytes(canonical_json.encode(value))
    else:
        pins = (folder / model_folder.POLICY).read_bytes()
        path.write_bytes(pins)
    assert "step 7" in run("verify", folder, *check, code=1).err


def swapped_after_the_check(monkeypatch: pytest.MonkeyPatch, path: Path) -> bytes:
    """What somebody puts at ``path`` as soon as the folder was verified: of another content."""
    envelope = Envelope.parse(path.read_bytes())
    payload = envelope.payload.replace(b"sha256:", b"sha256:0", 1)
    assert payload != envelope.payload
    other = sign_payload(payload, [Committee().keys.operator])
    check = cosigning.verify_to_cosign

    def checked(*given: Any, **named: Any) -> Any:
        found = check(*given, **named)
        path.write_bytes(other)
        return found

    monkeypatch.setattr(cosigning, "verify_to_cosign", checked)
    return other


@pytest.mark.parametrize("name", cosigning.SIGNED_IN_TURNS)
def test_nothing_is_signed_but_what_was_verified(
    run: Run,
    folder: Path,
    check: tuple[Any, ...],
    key: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    other = swapped_after_the_check(monkeypatch, folder / name)
    said = run("model", "cosign", folder, "--key", key, *check, code=1).err
    assert "changed while it was being checked" in said
    assert name in said
    assert (folder / name).read_bytes() == other


def test_a_signature_that_was_added_after_the_check_is_refused(
    run: Run, folder: Path, check: tuple[Any, ...], key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / model_folder.ATTESTATION
    other = Envelope.parse(path.read_bytes()).cosign([LocalSigner.generate()])
    check_model = cosigning.verify_to_cosign

    def checked(*given: Any, **named: Any) -> Any:
        found = check_model(*given, **named)
        path.write_bytes(other)
        return found

    monkeypatch.setattr(cosigning, "verify_to_cosign", checked)
    said = run("model", "cosign", folder, "--key", key, *check, code=1).err
    assert "other than the signer's" in said
    assert path.read_bytes() == other


@pytest.mark.parametrize("name", cosigning.SIGNED_IN_TURNS)
def test_control_without_the_digest_what_was_swapped_in_is_signed(
    run: Run,
    folder: Path,
    check: tuple[Any, ...],
    key: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    swapped_after_the_check(monkeypatch, folder / name)
    monkeypatch.setattr(cosigning, "require_verified", lambda *given, **named: None)
    run("model", "cosign", folder, "--key", key, *check)
    signed_now = Envelope.parse((folder / name).read_bytes())
    assert signed_now.signed_by([Committee.second.public_key])
