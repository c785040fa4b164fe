"""Sigstore bundles: the attestation's own bytes and signatures, one bundle for each of its keys."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Damaged, Untrusted
from govray.evidence.exports.sigstore_bundle import sigstore
from govray.evidence.exports.verified_facts import VerifiedFacts
from govray.governance.attestation import model_folder
from govray.governance.formats.dsse import Envelope, pae, sign_payload
from govray.governance.formats.keys import LocalSigner
from tests.support.committee import Committee
from tests.support.official_validators import check_sigstore
from tests.support.world import write


@pytest.fixture(scope="module")
def committee() -> Committee:
    return Committee()


@pytest.fixture(scope="module")
def cosigned(committee: Committee, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that three keys signed; tests only read it."""
    return committee.cosigned(tmp_path_factory.mktemp("committee") / "model")


@pytest.fixture(scope="module")
def facts(committee: Committee, cosigned: Path) -> VerifiedFacts:
    return committee.facts(cosigned)


def signature_of(data: bytes) -> tuple[bytes, bytes, str, str]:
    """Payload, signature, the envelope's keyid and the hint of a bundle."""
    value = json.loads(data)
    envelope = value["dsseEnvelope"]
    [only] = envelope["signatures"]
    return (
        base64.b64decode(envelope["payload"]),
        base64.b64decode(only["sig"]),
        only["keyid"],
        value["verificationMaterial"]["publicKey"]["hint"],
    )


def test_each_is_named_by_the_key_that_made_it(facts: VerifiedFacts) -> None:
    keys = {key.keyid: key for key in facts.keys}
    bundles = sigstore(facts)
    assert {key.algorithm for key in keys.values()} == {"ed25519", "ecdsa-p256"}
    assert bundles.keys() == keys.keys() == {key.keyid for key in facts.keys}
    for keyid, data in bundles.items():
        payload, signature, named, hint = signature_of(data)
        # The format demands one name in both places.
        assert named == hint == keys[keyid].openssh_fingerprint
        keys[keyid].verify(pae(facts.envelope.payload_type, payload), signature)
        for other in keys.keys() - {keyid}:
            with pytest.raises(Untrusted):
                keys[other].verify(pae(facts.envelope.payload_type, payload), signature)


SIGNERS = [LocalSigner.generate(), LocalSigner.generate(), LocalSigner.generate("ecdsa-p256")]


@given(
    payload=st.binary(max_size=60),
    chosen=st.lists(st.sampled_from(SIGNERS), min_size=1, unique_by=id),
    order=st.randoms(use_true_random=False),
)
def test_no_key_gets_the_signature_of_another(
    facts: VerifiedFacts, payload: bytes, chosen: list[LocalSigner], order: Any
) -> None:
    """Whatever is signed, by whichever keys, in whatever order those are known."""
    keys = [each.public_key for each in chosen]
    order.shuffle(keys)
    envelope = Envelope.parse(sign_payload(payload, chosen))
    bundles = sigstore(replace(facts, envelope=envelope, keys=tuple(keys)))
    assert bundles.keys() == {key.keyid for key in keys}
    for key in keys:
        found, signature, *_ = signature_of(bundles[key.keyid])
        assert found == payload
        key.verify(pae(envelope.payload_type, payload), signature)


def test_sigstore_models_reads_them(facts: VerifiedFacts) -> None:
    for data in sigstore(facts).values():
        bundle = check_sigstore(data)
        assert bundle.verification_material.timestamp_verification_data is None
        assert bundle.dsse_envelope.payload == facts.envelope.payload


@pytest.mark.parametrize("change", ["another payload", "a further signature", "a signature less"])
def test_what_changes_after_it_verified_is_not_exported(
    committee: Committee, tmp_path: Path, change: str
) -> None:
    folder = committee.cosigned(tmp_path / "model")
    model = committee.verify(folder)
    path = folder / model_folder.ATTESTATION
    envelope = Envelope.parse(path.read_bytes())
    signers = [committee.keys.operator, committee.second, committee.third]
    other = {
        "another payload": sign_payload(envelope.payload + b" ", signers),
        "a further signature": envelope.cosign([LocalSigner.generate()]),
        "a signature less": replace(envelope, signatures=envelope.signatures[1:]).encode(),
    }[change]
    facts = VerifiedFacts.of(model)
    write(path, other)
    with pytest.raises(Damaged, match="changed while it was being checked"):
        VerifiedFacts.of(model)
    if change == "another payload":  # The control: nothing further back would notice.
        swapped = sigstore(replace(facts, envelope=Envelope.parse(other)))
        assert swapped.keys() == sigstore(facts).keys()
        assert swapped != sigstore(facts)
