"""What a job's folder may not hold. That a job runs is in ``tests/platform/queue``."""

from __future__ import annotations

import shutil
from base64 import b64encode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from govray import printable
from govray.errors import Refused
from govray.train.driver.submit import refuse_keys, submit

KEY = Ed25519PrivateKey.generate()
ELLIPTIC = generate_private_key(SECP384R1())


def written(folder: Path, data: bytes) -> Path:
    path = folder / "data" / "corpora" / "notes"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


LOCKED = BestAvailableEncryption(b"password")
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
DER = KEY.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
FORMS = {
    "PEM": PEM,
    "PEM, locked": KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, LOCKED),
    "DER": DER,
    "DER, locked": KEY.private_bytes(Encoding.DER, PrivateFormat.PKCS8, LOCKED),
    "OpenSSH": KEY.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
    "OpenSSL": ELLIPTIC.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, LOCKED),
    "PEM in base64": b64encode(PEM),
    "DER in hexadecimal": DER.hex().encode(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_folder_with_a_key_is_not_sent(tmp_path: Path, form: bytes) -> None:
    key = written(tmp_path, form)
    with pytest.raises(Refused, match="a private key lies in the folder") as refused:
        refuse_keys(tmp_path)
    assert refused.value.where == str(key)


def test_a_folder_without_one_is(tmp_path: Path) -> None:
    """The control: a public key, a large file, what is no file, and how keys begin are no keys."""
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    written(tmp_path, public)
    (tmp_path / "weights").write_bytes(bytes(1 << 20))
    (tmp_path / "nothing").symlink_to(tmp_path / "absent")
    shutil.copy(printable.__file__, tmp_path)
    (tmp_path / "README").write_text("It begins '-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQ', then …")
    refuse_keys(tmp_path)


def test_nobody_is_asked_before_the_folder_is_looked_through(tmp_path: Path) -> None:
    """Port 9 answers nobody: asking there would be another error."""
    experiment = tmp_path / "jobs" / "train.yaml"
    experiment.parent.mkdir()
    experiment.write_text("name: x\n")
    (tmp_path / "jobs" / "train.py").write_text("")
    pem = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "operator.pem").write_bytes(pem)
    with pytest.raises(Refused, match=r"operator\.pem"):
        submit("http://127.0.0.1:9", experiment, tmp_path)
