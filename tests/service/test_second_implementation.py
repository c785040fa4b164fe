"""Sigstore's verifier checks the signature of an attestation that was fetched over HTTP."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner, PublicKey
from tests.support.library import Library, library

HERE = Path(__file__).parent / "second_implementation"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("npm") is None and "CI" not in os.environ, reason="npm is not installed"
    ),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script with what its lock file names."""
    folder = tmp_path_factory.mktemp("second") / "implementation"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=folder,
        check=True,
        timeout=300,
    )
    return folder


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Library, bytes]:
    with library(tmp_path_factory.mktemp("library")) as shelf:
        answer = shelf.get("public", f"/attestations/{shelf.digest('narrow')}")
    return shelf, answer.content


def checked(folder: Path, envelope: bytes, key: PublicKey) -> subprocess.CompletedProcess[str]:
    (folder / "envelope.json").write_bytes(envelope)
    (folder / "key.pem").write_bytes(key.to_pem())
    return subprocess.run(
        ["node", "verify_dsse.js", "envelope.json", "key.pem"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_accepts_the_operators_signature(
    installed: Path, fetched: tuple[Library, bytes]
) -> None:
    shelf, data = fetched
    done = checked(installed, data, shelf.shelf.world.keys.operator.public_key)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert f"sha256:{told['payload']}" == shelf.digest("narrow")
    assert told["subjects"] == {s.name: s.digest["sha256"] for s in shelf.model("narrow").subjects}


def test_it_refuses_another_key_and_another_payload(
    installed: Path, fetched: tuple[Library, bytes]
) -> None:
    """The control: it does look at the signature."""
    shelf, data = fetched
    operator = shelf.shelf.world.keys.operator.public_key
    assert checked(installed, data, LocalSigner.generate().public_key).returncode == 1
    envelope = Envelope.parse(data)
    changed = Envelope(envelope.payload_type, envelope.payload + b" ", envelope.signatures)
    assert checked(installed, changed.encode(), operator).returncode == 1
