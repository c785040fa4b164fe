"""Keys behind a command: openssl signs, and everything that a command can do wrong."""

from __future__ import annotations

import pickle
import stat
import time
from pathlib import Path

import pytest

from govray.errors import UsageError
from govray.governance.formats.keys import LocalSigner, check_reference, shown_reference, sign_with
from govray.governance.signers import command_signer
from govray.governance.signers.key_reference import open_signer
from tests.support.command import write_key
from tests.support.distribution import require_openssl

ED25519 = "cat > in.$$; openssl pkeyutl -sign -rawin -inkey key.pem -in in.$$; rm in.$$"
P256 = "openssl dgst -sha256 -sign key.pem"
MESSAGE = b"DSSEv1 what is signed" * 10_000  # more than a pipe holds


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(folder: Path, script: str, key: LocalSigner) -> str:
    """The reference of a shell script, with the key and its public half where it wants them."""
    write_key(folder / "key.pem", key)
    path = folder / "sign"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (folder / "sign.pub").write_bytes(key.public_key.to_pem())
    return "command:./sign"


@pytest.mark.parametrize(("algorithm", "script"), [("ed25519", ED25519), ("ecdsa-p256", P256)])
def test_openssl_signs(folder: Path, algorithm: str, script: str) -> None:
    require_openssl()
    key = LocalSigner.generate(algorithm)  # type: ignore[arg-type]
    signer = open_signer(command(folder, script, key))
    assert signer.public_key == key.public_key
    key.public_key.verify(MESSAGE, sign_with(signer, MESSAGE))


def test_words_are_split_and_no_shell_reads_them(folder: Path) -> None:
    reference = command(folder, 'printf %s "$#" > count', LocalSigner.generate())
    with pytest.raises(UsageError):
        open_signer(f"{reference} 'one word' $(touch made) ; rm count").sign(b"x")
    assert (folder / "count").read_text() == "6"
    assert not (folder / "made").exists()


def test_another_keys_signature_is_refused(folder: Path) -> None:
    require_openssl()
    reference = command(folder, ED25519, LocalSigner.generate())
    (folder / "sign.pub").write_bytes(LocalSigner.generate().public_key.to_pem())
    with pytest.raises(UsageError, match="64 bytes is not by the public key"):
        open_signer(reference).sign(b"x")


def test_control_unless_it_is_checked_another_keys_signature_is_returned(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_openssl()
    reference = command(folder, ED25519, LocalSigner.generate())
    (folder / "sign.pub").write_bytes(LocalSigner.generate().public_key.to_pem())
    monkeypatch.setattr(command_signer, "checked", lambda _, __, signature, **___: signature)
    assert len(open_signer(reference).sign(b"x")) == 64


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("true", "0 bytes is not by"),
        ("echo no such key >&2; exit 3", "ended with 3: no such key"),
        ("cat", "wrote more than 1024 bytes"),
        ("yes", "wrote more than 1024 bytes"),
        ("kill -9 $$", "ended with -9"),
        ("yes complaint | head -c 9000000 >&2; exit 1", "ended with 1"),
    ],
)
def test_a_command_that_fails_is_told(folder: Path, script: str, said: str) -> None:
    reference = command(folder, script, LocalSigner.generate())
    with pytest.raises(UsageError, match=said) as told:
        open_signer(reference).sign(MESSAGE)
    assert told.value.where == "command:./sign"


@pytest.mark.parametrize("script", ["sleep 600", "sleep 600 & exit 0", "trap '' TERM; sleep 600"])
def test_a_command_that_hangs_is_stopped_with_its_children(
    folder: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_signer, "TIMEOUT_S", 0.5)
    reference = command(folder, script, LocalSigner.generate())
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"did not end within 0\.5 s|0 bytes is not by"):
        open_signer(reference).sign(b"x")
    assert time.monotonic() - began < 300  # half of what they would sleep


def test_a_key_in_a_complaint_is_not_repeated(folder: Path) -> None:
    key = LocalSigner.generate()
    body = key.to_pem().decode().splitlines()[1]
    reference = command(folder, "cat key.pem | tr '\\n' ' ' >&2; exit 1", key)
    with pytest.raises(UsageError) as told:
        open_signer(reference).sign(b"x")
    assert body not in str(told.value)


def test_a_signer_does_not_travel(folder: Path) -> None:
    signer = open_signer(command(folder, "true", LocalSigner.generate()))
    with pytest.raises(UsageError, match="may not leave this process"):
        pickle.dumps(signer)


def test_what_is_shown_of_a_reference_has_no_secret() -> None:
    assert shown_reference("command:/opt/sign --token s3cret") == "command:/opt/sign"
    assert shown_reference(f"command:{'ab' * 32}") == "command:…"
    pem = LocalSigner.generate().to_pem().decode().splitlines()[1]
    for reference in (f"command:{pem}", f"pkcs11:object={pem}"):
        assert pem not in shown_reference(reference)
    with pytest.raises(ValueError, match="never the PIN itself"):
        check_reference("pkcs11:object=a?pin-value=1234")
    assert (
        check_reference("pkcs11:object=a?pin-source=file:/p")
        == "pkcs11:object=a?pin-source=file:/p"
    )
