"""C2SP signed notes with a tlog-checkpoint in them."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed, Refused, Untrusted
from govray.governance.formats.document import MAX_COUNT
from govray.governance.formats.keys import ALGORITHMS, Algorithm, LocalSigner
from govray.governance.formats.signed_note import (
    MAX_SIGNATURES,
    TreeHead,
    key_id,
    sign_checkpoint,
    verify_checkpoint,
)
from tests.support.table import each_row

ORIGIN = "example.com/log"
ROOT = bytes(range(32))
SIGNERS = {algorithm: LocalSigner.generate(algorithm) for algorithm in ALGORITHMS}
SIGNER = SIGNERS["ed25519"]
NOTE = sign_checkpoint(ORIGIN, 7, ROOT, SIGNER)
TEXT, LINE = NOTE.decode().split("\n\n")
GOLDEN = """\
example.com/log
20852163
AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=

— example.com/log \
1FXFIbVHtooa8v9v5d6W5Jt7OhjKOdM8Y6bhmeDZvPwiKLCEoaet931s9p2qv70XL1SoWGNUmvIEBQHCYwob1pAdJQc=
"""

origins = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="+"), min_size=1
)

# The key pair of the signed-note examples in Go's golang.org/x/mod/sumdb/note.
GO_KEY = base64.b64decode("AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz")
GO_SIGNATURE = (
    "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
)


def test_golden_key_id_and_signature_of_go_sumdb_note() -> None:
    """That text is no checkpoint, so key ID and signature are compared by themselves."""
    signer = LocalSigner(Ed25519PrivateKey.from_private_bytes(GO_KEY[1:]))
    text = (
        "If you think cryptography is the answer to your problem,\n"
        "then you don't know what your problem is.\n"
    )
    kid = key_id("PeterNeumann", signer.public_key)
    assert kid.hex() == "c74f20a3"
    assert base64.b64encode(kid + signer.sign(text.encode())).decode() == GO_SIGNATURE


def test_golden_checkpoint_from_a_fixed_key() -> None:
    signer = LocalSigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    assert sign_checkpoint(ORIGIN, 20852163, ROOT, signer).decode() == GOLDEN


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(origin=origins, size=st.integers(0, MAX_COUNT), root=st.binary(min_size=32, max_size=32))
def test_what_is_signed_is_what_is_read(
    algorithm: Algorithm, origin: str, size: int, root: bytes
) -> None:
    signer = SIGNERS[algorithm]
    data = sign_checkpoint(origin, size, root, signer)
    expected = TreeHead(origin, size, root)
    assert verify_checkpoint(data, signer.public_key) == expected
    assert verify_checkpoint(data, signer.public_key, origin=origin) == expected


@given(st.data())
def test_a_changed_byte_is_refused(data: st.DataObject) -> None:
    changed = bytearray(NOTE)
    changed[data.draw(st.integers(0, len(NOTE) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Refused):
        verify_checkpoint(bytes(changed), SIGNER.public_key)


def test_the_ecdsa_key_id_is_that_of_the_spki() -> None:
    key = SIGNERS["ecdsa-p256"].public_key
    assert key_id("any", key).hex() == key.keyid[:8]


def test_another_logs_checkpoint_is_untrusted() -> None:
    with pytest.raises(Untrusted, match=r"of the log 'example\.com/log', not 'example\.com/other'"):
        verify_checkpoint(NOTE, SIGNER.public_key, origin="example.com/other")


def test_another_key_is_untrusted() -> None:
    with pytest.raises(Untrusted, match="no signature by the key"):
        verify_checkpoint(NOTE, LocalSigner.generate().public_key)
    with pytest.raises(Untrusted, match="no signature by the key"):
        verify_checkpoint(NOTE, SIGNER.public_key, key_name="another")


def witness_line(number: int = 0) -> str:
    signature = base64.b64encode(bytes([0, 0, 0, number]) + bytes(64)).decode()
    return f"— witness.example/{number} {signature}\n"


def test_signatures_of_unknown_keys_are_ignored() -> None:
    note = f"{TEXT}\n\n{witness_line()}{LINE}{witness_line(1)}"
    assert verify_checkpoint(note.encode(), SIGNER.public_key).root == ROOT


def test_the_number_of_signatures_is_bounded() -> None:
    lines = "".join(witness_line(number) for number in range(MAX_SIGNATURES - 1))
    assert verify_checkpoint(f"{TEXT}\n\n{LINE}{lines}".encode(), SIGNER.public_key)
    with pytest.raises(Malformed, match="more than 16 signatures"):
        verify_checkpoint(f"{TEXT}\n\n{LINE}{lines}{witness_line(99)}".encode(), SIGNER.public_key)


def test_a_bad_signature_of_the_known_key_refuses_the_note() -> None:
    kid = key_id(ORIGIN, SIGNER.public_key)
    bad = f"— {ORIGIN} {base64.b64encode(kid + bytes(64)).decode()}\n"
    with pytest.raises(Untrusted, match="does not verify"):
        verify_checkpoint(f"{TEXT}\n\n{LINE}{bad}".encode(), SIGNER.public_key)


def signed(text: str) -> bytes:
    """A note over any text, with a signature that verifies."""
    kid = key_id(ORIGIN, SIGNER.public_key)
    signature = base64.b64encode(kid + SIGNER.sign(text.encode())).decode()
    return f"{text}\n— {ORIGIN} {signature}\n".encode()


R = base64.b64encode(ROOT).decode()


@each_row(
    ("data", "names"),
    [
        (b"", "blank line"),
        (NOTE[:-1], "signature lines"),
        (NOTE + b"\n", "signature lines"),
        (NOTE + NOTE, "three lines"),
        (NOTE.replace("—".encode(), b"-"), "em dash"),
        (NOTE.replace("— ".encode(), "—".encode()), "em dash"),
        (NOTE.replace(b"\n", b"\r\n"), "control character"),
        (NOTE.replace(b"\n\n", b"\n"), "blank line"),
        (NOTE.replace("— ".encode(), "—  ".encode()), "key name"),
        (b"\xff" + NOTE, "UTF-8"),
        (NOTE + b"x" * 300_000, "limit"),
        (f"{TEXT}\n\n— {ORIGIN} AAAA\n".encode(), "no signature"),
        (f"{TEXT}\n\n— {ORIGIN} AAAAA\n".encode(), "base64"),
        (f"{TEXT}\n\n— {ORIGIN}\n".encode(), "no signature"),
        (signed(f"{ORIGIN}\n07\n{R}\n"), "plain decimal"),
        (signed(f"{ORIGIN}\n-7\n{R}\n"), "plain decimal"),
        (signed(f"{ORIGIN}\n٧\n{R}\n"), "plain decimal"),
        (signed(f"{ORIGIN}\n{2**63}\n{R}\n"), "out of range"),
        (signed(f"{ORIGIN}\n7\n{R[:-1]}\n"), "root"),
        (signed(f"{ORIGIN}\n7\nAAAA\n"), "32 bytes"),
        (signed(f"{ORIGIN}\n7\n{R[:-2]}9=\n"), "canonical"),
        (signed(f"{ORIGIN}\n7\n"), "three lines"),
        (signed(f"{ORIGIN}\n7\n{R}\nextension\n"), "three lines"),
        (signed(f"{ORIGIN}\n\n7\n{R}\n"), "three lines"),
        (signed(f"\n7\n{R}\n"), "origin"),
        (signed(f"two words\n7\n{R}\n"), "origin"),
    ],
)
def test_other_spellings_are_refused(data: bytes, names: str) -> None:
    with pytest.raises(Malformed, match=names):
        verify_checkpoint(data, SIGNER.public_key, key_name=ORIGIN)
