"""Keys in a hardware module, with SoftHSM2 of the distribution as the module."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from govray.errors import UsageError
from govray.governance.formats.keys import LocalSigner, shown_reference, sign_with
from govray.governance.signers import pkcs11_signer
from govray.governance.signers.key_reference import open_signer
from govray.governance.signers.pkcs11_reference import Pkcs11Reference
from tests.support.distribution import require_softhsm
from tests.support.table import each_row

PIN = "482-a"

# In a process of its own: it makes what a security officer would.
MAKE = """
import sys
import pkcs11
from pkcs11.util.ec import encode_named_curve_parameters as named

module, pin = sys.argv[1:]
token = pkcs11.lib(module).get_token(token_label="govray")
kinds = {
    "p256": (pkcs11.KeyType.EC, named("secp256r1"), None),
    "p384": (pkcs11.KeyType.EC, named("secp384r1"), None),
    "ed25519": (
        pkcs11.KeyType.EC_EDWARDS,
        bytes.fromhex("06032b6570"),
        pkcs11.Mechanism.EC_EDWARDS_KEY_PAIR_GEN,
    ),
}
with token.open(user_pin=pin, rw=True) as session:
    for number, (label, (kind, curve, mechanism)) in enumerate(kinds.items(), start=1):
        made = session.create_domain_parameters(
            kind, {pkcs11.Attribute.EC_PARAMS: curve}, local=True
        )
        named_by = {"mechanism": mechanism} if mechanism else {}
        made.generate_keypair(store=True, label=label, id=bytes([number]), **named_by)
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The module, with a token that holds three keys. The PIN stands in ``pin`` beside it."""
    library = require_softhsm()
    folder = tmp_path_factory.mktemp("hsm")
    (folder / "tokens").mkdir()
    settings = folder / "softhsm2.conf"
    settings.write_text(f"directories.tokendir = {folder}/tokens\nobjectstore.backend = file\n")
    (folder / "pin").write_text(f"{PIN}\n")
    (folder / "pin").chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(settings))
        words = ["--init-token", "--free", "--label", "govray", "--pin", PIN, "--so-pin", "5678"]
        for command in (
            ["softhsm2-util", *words],
            [sys.executable, "-c", MAKE, library, PIN],
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        yield library


@pytest.fixture
def pin_file() -> str:
    return str(Path(os.environ["SOFTHSM2_CONF"]).with_name("pin"))


def uri(module: Path, what: str = "token=govray;object=p256", more: str = "") -> str:
    return f"pkcs11:{what}?module-path={module}{more}"


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [("object=p256", "ecdsa-p256"), ("object=ed25519", "ed25519"), ("id=%03", "ed25519")],
)
def test_a_token_signs(module: Path, pin_file: str, key: str, algorithm: str) -> None:
    signer = open_signer(uri(module, f"token=govray;{key}", f"&pin-source=file:{pin_file}"))
    assert signer.public_key.algorithm == algorithm
    for message in (b"", b"what is signed" * 100_000):
        signer.public_key.verify(message, sign_with(signer, message))


@each_row(
    ("what", "pin", "said"),
    [
        ("token=govray;object=absent", PIN, "no such key"),
        ("token=absent;object=p256", PIN, "no such token"),
        ("token=govray;object=p256", "9999", "the PIN is wrong"),
        ("token=govray;object=p256", "", "asks for a PIN|no such key"),
        ("token=govray;object=p384", PIN, "neither Ed25519 nor P-256"),
    ],
)
def test_what_a_token_refuses_is_told(module: Path, what: str, pin: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        open_signer(uri(module, what), environment={"GOVRAY_PKCS11_PIN": pin}).sign(b"x")
    assert not pin or pin not in str(told.value)


def test_a_token_that_signs_with_another_key_is_found_out(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"GOVRAY_PKCS11_PIN": PIN}
    signer = open_signer(uri(module), environment=environment)
    other = LocalSigner.generate("ecdsa-p256")
    monkeypatch.setattr(
        pkcs11_signer.Pkcs11Signer, "_sign", lambda _, __, message: other.sign(message)
    )
    with pytest.raises(UsageError, match="is not by the public key"):
        signer.sign(b"x")
    # The control: unless it is checked, nobody notices here.
    monkeypatch.setattr(pkcs11_signer, "checked", lambda _, __, signature, **___: signature)
    assert signer.sign(b"x")


def test_a_signer_does_not_travel_and_tells_no_pin(module: Path) -> None:
    signer = open_signer(uri(module), environment={"GOVRAY_PKCS11_PIN": PIN})
    assert PIN not in repr(signer)
    with pytest.raises(UsageError, match="may not leave this process"):
        pickle.dumps(signer)


def test_a_pin_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pin"
    file.write_text("1234\n")
    file.chmod(0o644)
    reference = f"pkcs11:object=a?module-path=m&pin-source=file:{file}"
    with pytest.raises(UsageError, match="can be read by others"):
        Pkcs11Reference.parse(reference, {})
    file.chmod(0o600)
    assert Pkcs11Reference.parse(reference, {}).pin == "1234"
    assert Pkcs11Reference.parse("pkcs11:object=a%20b?module-path=/m%20n", {}).label == "a b"


def test_what_is_shown_has_neither_module_nor_pin() -> None:
    reference = "pkcs11:token=t;object=o?module-path=/m&pin-source=file:/pin"
    assert shown_reference(reference) == "pkcs11:token=t;object=o"
    assert "1234" not in shown_reference("pkcs11:object=o;pin-value=1234?module-path=/m")
