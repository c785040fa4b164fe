"""Signatures have one spelling, but for P-256's twins: those name no other document."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from govray.errors import Untrusted, UsageError, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json, keys
from govray.governance.formats.dsse import Envelope, Signature, sign_payload
from govray.governance.formats.keys import LocalSigner, PublicKey, sign_with
from govray.governance.formats.signed_note import sign_checkpoint, verify_checkpoint
from govray.governance.verify.verifier import verify
from tests.support.world import AT, World

N = keys._P256_ORDER
MESSAGE = b"a message"


def twin(signature: bytes) -> bytes:
    """The other signature that verifies, made without the key."""
    r, s = decode_dss_signature(signature)
    return encode_dss_signature(r, N - s)


def low(signature: bytes) -> bool:
    return decode_dss_signature(signature)[1] <= N // 2


def respelt(envelope: bytes) -> bytes:
    """The same envelope, with its P-256 signatures' twins."""
    read = Envelope.parse(envelope)
    twins = tuple(Signature(twin(each.sig), each.keyid) for each in read.signatures)
    return Envelope(read.payload_type, read.payload, twins).encode()


@pytest.fixture
def signer() -> LocalSigner:
    return LocalSigner.generate("ecdsa-p256")


class Device:
    """An HSM: it returns what it likes."""

    def __init__(self, signer: LocalSigner, answer: bytes | None = None) -> None:
        self._signer = signer
        self._answer = answer

    @property
    def public_key(self) -> PublicKey:
        return self._signer.public_key

    def sign(self, message: bytes) -> bytes:
        if self._answer is not None:
            return self._answer
        signature = self._signer.sign(message)
        return twin(signature) if low(signature) else signature


def test_what_is_written_has_the_lower_s_whatever_the_signer_makes(signer: LocalSigner) -> None:
    device = Device(signer)
    assert not low(device.sign(MESSAGE))
    for _ in range(20):
        for each in (signer, device):
            written = sign_with(each, MESSAGE)
            assert low(written)
            signer.public_key.verify(MESSAGE, written)
    [entry] = Envelope.parse(sign_payload(MESSAGE, [device])).signatures
    assert low(entry.sig)
    note = sign_checkpoint("example.com/log", 0, bytes(32), device)
    verify_checkpoint(note, signer.public_key)
    with pytest.raises(UsageError, match="no DER signature"):
        sign_with(Device(signer, b"\x00" * 64), MESSAGE)


def respellings(signature: bytes) -> dict[str, bytes]:
    """Other encodings of the same two numbers, and numbers that are equal modulo the order."""
    r, s = decode_dss_signature(signature)
    body = signature[2:]
    first = body[2 : 2 + body[1]]
    second = body[2 + body[1] + 2 :]

    def sequence(*integers: bytes) -> bytes:
        content = b"".join(b"\x02" + bytes([len(each)]) + each for each in integers)
        return b"\x30" + bytes([len(content)]) + content

    assert sequence(first, second) == signature
    return {
        "a byte behind": signature + b"\0",
        "a byte within": b"\x30" + bytes([len(body) + 1]) + body + b"\0",
        "a long length": b"\x30\x81" + signature[1:],
        "an indefinite length": b"\x30\x80" + body + b"\0\0",
        "a leading zero in r": sequence(b"\0" + first, second),
        "a leading zero in s": sequence(first, b"\0" + second),
        "r plus the order": encode_dss_signature(r + N, s),
        "s plus the order": encode_dss_signature(r, s + N),
        "s minus the order": sequence(first, (s - N).to_bytes(33, "big", signed=True)),
        "r is zero": encode_dss_signature(0, s),
        "s is zero": encode_dss_signature(r, 0),
        "the numbers as they are": r.to_bytes(32, "big") + s.to_bytes(32, "big"),
        "cut off": signature[:-1],
        "nothing": b"",
    }


def test_no_other_encoding_of_a_p256_signature_verifies(signer: LocalSigner) -> None:
    for signature in (signer.sign(MESSAGE), twin(signer.sign(MESSAGE))):
        for other in respellings(signature).values():
            with pytest.raises(Untrusted):
                signer.public_key.verify(MESSAGE, other)


def test_an_ed25519_signature_has_one_encoding() -> None:
    ed = LocalSigner.generate()
    signature = ed.sign(MESSAGE)
    order = 2**252 + 27742317777372353535851937790883648493
    s = int.from_bytes(signature[32:], "little")
    for other in (
        signature[:32] + (s + order).to_bytes(32, "little"),
        signature[:32] + (order - s).to_bytes(32, "little"),
        signature[:31] + bytes([signature[31] ^ 0x80]) + signature[32:],
        signature + b"\0",
        signature[:-1],
    ):
        with pytest.raises(Untrusted):
            ed.public_key.verify(MESSAGE, other)
    assert sign_with(ed, MESSAGE) == signature


@pytest.fixture(scope="module")
def hsm() -> World:
    """An organisation whose operator signs with P-256."""
    world = World()
    world.keys.operator = LocalSigner.generate("ecdsa-p256")
    world.root = world.sign_root()
    return world


def test_the_twin_of_an_attestation_is_the_same_attestation(hsm: World, tmp_path: Path) -> None:
    """Everything by which it is known is equal; only the envelope's bytes are others."""
    folder = hsm.deploy(tmp_path / "model")
    one = verify(folder, trust_root=hsm.root, at=AT)
    data = (folder / model_folder.ATTESTATION).read_bytes()
    assert canonical_json.sha256(respelt(data)) != canonical_json.sha256(data)
    (folder / model_folder.ATTESTATION).write_bytes(respelt(data))
    two = verify(folder, trust_root=hsm.root, at=AT)
    assert two.digest == one.digest
    assert (two.attestation, two.subjects, two.keyids) == (
        one.attestation,
        one.subjects,
        one.keyids,
    )


def test_the_twin_of_a_pinned_file_is_refused_or_the_same(hsm: World, tmp_path: Path) -> None:
    """The manifest has the operator's P-256 signature. Nothing else can come of a respelling."""
    folder = hsm.deploy(tmp_path / "model")
    digests = {verify(folder, trust_root=hsm.root, at=AT).manifest.digest}
    path = folder / model_folder.MANIFEST
    path.write_bytes(respelt(path.read_bytes()))
    with contextlib.suppress(VerificationFailed):
        digests.add(verify(folder, trust_root=hsm.root, at=AT).manifest.digest)
    assert len(digests) == 1
