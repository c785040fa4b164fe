"""Keys: what verifies, what is refused, and what never leaks."""

from __future__ import annotations

import base64
import os
import pickle
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import GovrayError, Malformed, Untrusted, UsageError
from govray.governance.formats.keys import (
    ALGORITHMS,
    Algorithm,
    LocalSigner,
    PublicKey,
    load_signer,
)
from tests.support.table import each_row

SIGNERS = {algorithm: LocalSigner.generate(algorithm) for algorithm in ALGORITHMS}
MESSAGE = b"DSSEv1 4 type 7 payload"
SIGNATURES = {algorithm: signer.sign(MESSAGE) for algorithm, signer in SIGNERS.items()}
DER = serialization.Encoding.DER
SPKI = serialization.PublicFormat.SubjectPublicKeyInfo
ED25519_PREFIX = bytes.fromhex("302a300506032b6570032100")

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


@every_algorithm
@given(message=st.binary(max_size=64))
def test_what_a_signer_signs_its_key_verifies(algorithm: Algorithm, message: bytes) -> None:
    signer = SIGNERS[algorithm]
    signature = signer.sign(message)
    signer.public_key.verify(message, signature)
    with pytest.raises(Untrusted):
        signer.public_key.verify(message + b"x", signature)


@every_algorithm
@given(data=st.data())
def test_a_changed_signature_is_refused(algorithm: Algorithm, data: st.DataObject) -> None:
    signer = SIGNERS[algorithm]
    signature = bytearray(SIGNATURES[algorithm])
    signature[data.draw(st.integers(0, len(signature) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Untrusted):
        signer.public_key.verify(MESSAGE, bytes(signature))


@every_algorithm
@given(signature=st.binary(max_size=80))
def test_any_bytes_for_a_signature_give_untrusted(algorithm: Algorithm, signature: bytes) -> None:
    with pytest.raises(Untrusted):
        SIGNERS[algorithm].public_key.verify(MESSAGE, signature)


def test_one_key_does_not_verify_for_another() -> None:
    for algorithm, signer in SIGNERS.items():
        with pytest.raises(Untrusted):
            LocalSigner.generate(algorithm).public_key.verify(MESSAGE, signer.sign(MESSAGE))


def test_golden_ed25519_of_rfc_8032() -> None:
    """Section 7.1, test 2."""
    seed = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    signer = LocalSigner(Ed25519PrivateKey.from_private_bytes(seed))
    public = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert signer.public_key.raw.hex() == public
    assert signer.public_key.spki == ED25519_PREFIX + bytes.fromhex(public)
    # As ssh-keygen -l and the DSSE library of Sigstore's Go tools print it.
    assert (
        signer.public_key.openssh_fingerprint
        == "SHA256:F34nin7tcaYH6WR5LSWSfj6weFBPfBpuyUUoPFP9YjA"
    )
    assert signer.sign(b"\x72").hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )


def test_golden_p256_of_rfc_6979() -> None:
    """Appendix A.2.5, SHA-256, message "sample"."""
    numbers = ec.EllipticCurvePublicNumbers(
        0x60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6,
        0x7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299,
        ec.SECP256R1(),
    )
    key = PublicKey("ecdsa-p256", numbers.public_key().public_bytes(DER, SPKI))
    signature = encode_dss_signature(
        0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716,
        0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8,
    )
    key.verify(b"sample", signature)
    assert key.openssh_fingerprint == "SHA256:hfuNWmjIYvsBGZ6dpCLTTAEa5LxbZABRHHVoynAxFlo"
    with pytest.raises(Untrusted):
        key.verify(b"sampler", signature)


@every_algorithm
@given(data=st.data())
def test_changed_spki_is_another_key_or_none(algorithm: Algorithm, data: st.DataObject) -> None:
    spki = bytearray(SIGNERS[algorithm].public_key.spki)
    spki[data.draw(st.integers(0, len(spki) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        key = PublicKey.from_spki(bytes(spki))
    except Malformed:
        return
    assert key.keyid != SIGNERS[algorithm].public_key.keyid
    with pytest.raises(Untrusted):
        key.verify(MESSAGE, SIGNATURES[algorithm])


def compressed_p256() -> bytes:
    """A P-256 key whose point is compressed: valid SPKI, a second encoding of one key."""
    key = SIGNERS["ecdsa-p256"].public_key
    x, y = key.raw[1:33], key.raw[33:]
    point = bytes([2 + (y[-1] & 1)]) + x
    algorithm = bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107")
    bits = b"\x03" + bytes([len(point) + 1]) + b"\x00" + point
    return b"\x30" + bytes([len(algorithm) + len(bits)]) + algorithm + bits


@each_row(
    ("spki", "names"),
    [
        (b"", "DER"),
        (b"\x30\x00", "DER"),
        (ED25519_PREFIX + bytes(31), "DER"),
        (SIGNERS["ed25519"].public_key.spki + b"\x00", "DER"),
        (ec.generate_private_key(ec.SECP384R1()).public_key().public_bytes(DER, SPKI), "P-256"),
        (ec.generate_private_key(ec.SECP256K1()).public_key().public_bytes(DER, SPKI), "P-256"),
        (rsa.generate_private_key(65537, 2048).public_key().public_bytes(DER, SPKI), "RSA"),
        (x25519.X25519PrivateKey.generate().public_key().public_bytes(DER, SPKI), "X25519"),
        (compressed_p256(), "canonical"),
    ],
)
def test_other_keys_are_refused(spki: bytes, names: str) -> None:
    with pytest.raises(Malformed, match=names):
        PublicKey.from_spki(spki)


FIELD = 2**255 - 19


def small_order_y() -> set[int]:
    """The y of all points of order 1, 2, 4, 8 on -x² + y² = 1 + d·x²·y², from the curve's law.

    Order 1 and 2: x = 0. Order 4: doubling gives x = 0, so y = 0. Order 8: doubling
    gives y = 0, so y² = -x², and the curve says d·y⁴ + 2y² - 1 = 0.
    """

    def roots(square: int) -> set[int]:
        root = pow(square, (FIELD + 3) // 8, FIELD)
        candidates = {root, root * pow(2, (FIELD - 1) // 4, FIELD) % FIELD}
        return {r for c in candidates for r in (c, -c % FIELD) if r * r % FIELD == square % FIELD}

    d = -121665 * pow(121666, -1, FIELD) % FIELD
    order_8 = {y for r in roots(1 + d) for y in roots((r - 1) * pow(d, -1, FIELD))}
    assert len(order_8) == 2
    return {0, 1, FIELD - 1} | order_8


@each_row("sign", [0, 1])
@each_row("y", sorted(small_order_y()))
def test_ed25519_points_of_small_order_are_refused(y: int, sign: int) -> None:
    raw = (y | sign << 255).to_bytes(32, "little")
    with pytest.raises(Malformed, match="small order"):
        PublicKey("ed25519", ED25519_PREFIX + raw)


def test_control_the_library_alone_accepts_a_forgery_under_a_small_order_point() -> None:
    """The reason for the check above: nobody holds a private key here."""
    identity = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(identity).verify(identity + bytes(32), b"any message")


@pytest.mark.parametrize("y", [FIELD, FIELD + 1, FIELD + 18])
def test_ed25519_points_in_a_second_encoding_are_refused(y: int) -> None:
    with pytest.raises(Malformed, match="canonical"):
        PublicKey("ed25519", ED25519_PREFIX + y.to_bytes(32, "little"))


@every_algorithm
def test_private_keys_neither_show_nor_travel(algorithm: Algorithm) -> None:
    signer = SIGNERS[algorithm]
    assert signer.public_key.keyid in repr(signer)
    assert not hasattr(signer, "__dict__")
    with pytest.raises(UsageError, match="may not leave this process"):
        pickle.dumps(signer)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "operator.pem"
    path.write_bytes(SIGNERS["ed25519"].to_pem())
    path.chmod(0o600)
    return path


def test_a_signer_is_loaded_from_a_path_or_the_environment(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_signer(str(key_file)).public_key == SIGNERS["ed25519"].public_key
    for value in (str(key_file), SIGNERS["ed25519"].to_pem().decode()):
        monkeypatch.setenv("GOVRAY_TEST_KEY", value)
        assert load_signer("env:GOVRAY_TEST_KEY").public_key == SIGNERS["ed25519"].public_key


def test_an_encrypted_file_asks_for_its_password(key_file: Path) -> None:
    key_file.write_bytes(SIGNERS["ed25519"].to_pem(b"secret"))
    with pytest.raises(UsageError, match=r"operator\.pem: the private key is encrypted"):
        load_signer(str(key_file))
    load_signer(str(key_file), password=b"secret")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_key_file_that_others_can_reach_is_refused(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(UsageError, match=f"chmod 600 {key_file}"):
        load_signer(str(key_file))


def test_an_endless_file_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 10**9)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="too large"):
        load_signer(str(path))


def test_no_error_shows_key_bytes(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = SIGNERS["ed25519"].to_pem()
    secret = base64.b64decode(b"".join(pem.splitlines()[1:-1]))[-32:]
    broken = pem.replace(b"-----END", b"!----END")
    monkeypatch.setenv("GOVRAY_TEST_KEY", broken.decode())
    key_file.write_bytes(broken)
    for reference in ("env:GOVRAY_TEST_KEY", str(key_file)):
        with pytest.raises(GovrayError) as caught:
            load_signer(reference)
        shown = str(caught.value) + repr(caught.value)
        assert base64.b64encode(secret).decode()[4:-4] not in shown
        assert pem.splitlines()[1].decode() not in shown


def test_a_key_in_an_unknown_form_is_not_taken_for_a_path_and_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOVRAY_TEST_KEY", "9d61b19deffd5a60ba844af492ec2cc4")
    with pytest.raises(UsageError, match="env:GOVRAY_TEST_KEY: cannot read") as caught:
        load_signer("env:GOVRAY_TEST_KEY")
    assert "9d61b19d" not in str(caught.value)
