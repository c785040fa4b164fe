"""Sigstore's verifier checks an attestation that was fetched over HTTP, and exported bundles."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from govray.evidence.exports.sigstore_bundle import MEDIA_TYPE, sigstore
from govray.evidence.exports.verified_facts import VerifiedFacts
from govray.governance.formats.dsse import encode_base64
from govray.governance.formats.keys import PublicKey
from govray.governance.verify.verifier import VerifiedModel
from tests.support.committee import Committee
from tests.support.distribution import require
from tests.support.library import Library, library

HERE = Path(__file__).parent / "second_implementation"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script with what its lock file names."""
    require(shutil.which("npm") is not None, "npm")
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


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> VerifiedFacts:
    """Of a model that three keys signed, two of Ed25519 and one of P-256."""
    committee = Committee()
    return committee.facts(committee.cosigned(tmp_path_factory.mktemp("committee") / "model"))


def checked(folder: Path, *cases: tuple[Any, PublicKey]) -> list[dict[str, Any]]:
    """What Sigstore's verifier says of each bundle under its key."""
    given = [{"bundle": bundle, "key": key.to_pem().decode()} for bundle, key in cases]
    (folder / "cases.json").write_text(json.dumps(given))
    done = subprocess.run(
        ["node", "verify_bundles.js", "cases.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(told) == len(cases)
    return told


def around(envelope: bytes) -> Any:
    """A bundle with the envelope's bytes as they are."""
    return {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": "operator"}, "tlogEntries": []},
        "dsseEnvelope": json.loads(envelope),
    }


def subjects(model: VerifiedModel) -> dict[str, str]:
    return {each.name: each.digest["sha256"] for each in model.subjects}


def test_it_accepts_the_operators_signature(
    installed: Path, fetched: tuple[Library, bytes]
) -> None:
    shelf, data = fetched
    [told] = checked(installed, (around(data), shelf.shelf.world.keys.operator.public_key))
    assert f"sha256:{told['payload']}" == shelf.digest("narrow")
    assert told["subjects"] == subjects(shelf.model("narrow"))


def test_it_accepts_a_bundle_of_each_key(installed: Path, facts: VerifiedFacts) -> None:
    bundles = sigstore(facts)
    assert sorted(key.algorithm for key in facts.keys) == ["ecdsa-p256", "ed25519", "ed25519"]
    told = checked(installed, *((json.loads(bundles[key.keyid]), key) for key in facts.keys))
    assert [each["payload"] for each in told] == [facts.hex] * 3
    files = {each.name: each.sha256 for each in facts.files}
    assert told[0]["subjects"].items() <= files.items()
    assert "model.safetensors" in told[0]["subjects"]


def test_it_refuses_what_was_changed_in_a_bundle(installed: Path, facts: VerifiedFacts) -> None:
    """The control, and why a bundle holds one signature."""
    bundles = {key: json.loads(sigstore(facts)[key.keyid]) for key in facts.keys}
    first, second, third = facts.keys

    def altered(**members: object) -> Any:
        bundle = bundles[first]
        return bundle | {"dsseEnvelope": bundle["dsseEnvelope"] | members}

    told = checked(
        installed,
        (altered(), first),
        (altered(), second),
        (bundles[third], first),
        (altered(payload=encode_base64(facts.envelope.payload + b" ")), first),
        (altered(payloadType="text/plain"), first),
        (altered(signatures=bundles[second]["dsseEnvelope"]["signatures"]), first),
        (altered(signatures=json.loads(facts.envelope.encode())["signatures"]), first),
        (altered(signatures=[]), first),
    )
    assert told[0]["payload"] == facts.hex
    assert all("refused" in each for each in told[1:]), told
