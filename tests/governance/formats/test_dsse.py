"""DSSE: the bytes that are signed, the one spelling, and who counts as a signer."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import assume, given
from hypothesis import strategies as st

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import (
    IN_TOTO,
    Envelope,
    Signature,
    decode_base64,
    pae,
    sign_payload,
)
from govray.governance.formats.keys import LocalSigner, PublicKey
from tests.support.table import each_row

ED, EC = LocalSigner.generate("ed25519"), LocalSigner.generate("ecdsa-p256")
PAYLOAD = b'{"a":1}'
SIGNED = sign_payload(PAYLOAD, [ED, EC])
GOLDEN = (
    b'{"payload":"eyJhIjoxfQ==","payloadType":"application/vnd.in-toto+json",'
    b'"signatures":[{"keyid":"a050837d85070582ccf7394b0988847cc312cb88259b894899f6f239cf1791a5",'
    b'"sig":"9JQymjJqlnmj/ErsvMYOuLDVoLANiO+detxkSNdg372rVnob78vm2M/iQvpw/lqmAkuF0grgF8BKYEw1ubjxAw=="}]}'
)


def test_golden_pae_and_signature_of_the_dsse_specification() -> None:
    """protocol.md, "Test Vectors"; its signature is r || s, here put into DER."""
    message = pae("http://example.com/HelloWorld", b"hello world")
    assert message == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    numbers = ec.EllipticCurvePublicNumbers(
        46950820868899156662930047687818585632848591499744589407958293238635476079160,
        5640078356564379163099075877009565129882514886557779369047442380624545832820,
        ec.SECP256R1(),
    )
    key = PublicKey.from_spki(
        numbers.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    raw = base64.b64decode(
        "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
    )
    signature = encode_dss_signature(
        int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    )
    key.verify(message, signature)


def test_golden_envelope_from_a_fixed_key() -> None:
    signer = LocalSigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    assert sign_payload(PAYLOAD, [signer]) == GOLDEN


@given(
    payload=st.binary(max_size=100),
    payload_type=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
)
def test_what_is_signed_is_what_is_read(payload: bytes, payload_type: str) -> None:
    data = sign_payload(payload, [ED], payload_type=payload_type)
    envelope = Envelope.parse(data)
    assert (envelope.payload, envelope.payload_type) == (payload, payload_type)
    assert envelope.encode() == data
    assert envelope.signed_by([ED.public_key, EC.public_key]) == {ED.public_key.keyid}


@given(st.data())
def test_a_changed_byte_is_malformed_or_unsigned(data: st.DataObject) -> None:
    """Of the signed content. The keyid alone is not covered, and decides nothing."""
    signed = sign_payload(PAYLOAD, [ED])
    position = data.draw(st.integers(0, len(signed) - 1))
    changed = bytearray(signed)
    changed[position] ^= data.draw(st.integers(1, 255))
    keyid = signed.index(b'"keyid":"') + 9
    assume(not keyid <= position < keyid + 64)
    try:
        envelope = Envelope.parse(bytes(changed))
    except Malformed:
        return
    assert envelope.signed_by([ED.public_key]) == frozenset()


def test_the_payload_type_is_signed() -> None:
    envelope = Envelope.parse(SIGNED)
    other = Envelope("application/json", envelope.payload, envelope.signatures)
    assert len(envelope.signed_by([ED.public_key, EC.public_key])) == 2
    assert not other.signed_by([ED.public_key, EC.public_key])


@pytest.mark.parametrize("keyid", [None, "x", "0" * 64])
def test_the_keyid_decides_nothing(keyid: str | None) -> None:
    envelope = Envelope.parse(SIGNED)
    renamed = Envelope(
        IN_TOTO, PAYLOAD, tuple(Signature(each.sig, keyid) for each in envelope.signatures)
    )
    keys = [ED.public_key, EC.public_key]
    assert Envelope.parse(renamed.encode()).signed_by(keys) == envelope.signed_by(keys)
    stranger = LocalSigner.generate()
    posing = Envelope(
        IN_TOTO,
        PAYLOAD,
        (Signature(stranger.sign(pae(IN_TOTO, PAYLOAD)), ED.public_key.keyid),),
    )
    assert not posing.signed_by(keys)


def altered(**members: Any) -> bytes:
    """A canonical envelope with members replaced, or removed where ``...``."""
    value = json.loads(SIGNED) | members
    return canonical_json.encode({key: item for key, item in value.items() if item is not ...})


SIGNATURES = json.loads(SIGNED)["signatures"]


@each_row(
    ("data", "names"),
    [
        (b"", "not JSON"),
        (b"null", "object"),
        (b"[]", "object"),
        (SIGNED + b"\n", "canonical"),
        (b" " + SIGNED, "canonical"),
        (json.dumps(json.loads(SIGNED)).encode(), "canonical"),
        (SIGNED.replace(b"payloadType", b"payload\\u0054ype"), "canonical"),
        (SIGNED[:-1] + b',"payload":""}', "twice"),
        (altered(extra=1), "unknown field 'extra'"),
        (altered(payloadType=...), "missing field 'payloadType'"),
        (altered(payload=...), "missing field 'payload'"),
        (altered(signatures=...), "missing field 'signatures'"),
        (altered(payload=1), "'payload' should be base64"),
        (altered(payloadType=1), "'payloadType' should be a text"),
        (altered(payloadType=""), "'payloadType' should be a text"),
        (altered(payloadType="x" * 300), "'payloadType' should be a text"),
        (altered(signatures=[]), "list of 1 to"),
        (altered(signatures={}), "list of 1 to"),
        (altered(signatures=SIGNATURES * 9), "list of 1 to"),
        (altered(signatures=["x"]), "signatures: should be a JSON object"),
        (altered(signatures=[{"keyid": "x"}]), "missing field 'sig'"),
        (altered(signatures=[SIGNATURES[0] | {"cert": ""}]), "unknown field 'cert'"),
        (altered(signatures=[SIGNATURES[0] | {"keyid": None}]), "'keyid' should be a text"),
        (altered(signatures=[SIGNATURES[0] | {"sig": "AAA"}]), "'sig': not base64"),
    ],
)
def test_other_spellings_are_refused(data: bytes, names: str) -> None:
    with pytest.raises(Malformed, match=names) as caught:
        Envelope.parse(data, where="policy.dsse.json")
    assert caught.value.where is not None
    assert caught.value.where.startswith("policy.dsse.json")


@each_row(
    "text",
    [
        "QQ",
        "QQ=",
        "QR==",
        "QUI",
        "QUJ=",
        "QQ==\n",
        " QQ==",
        "Q Q==",
        "Q-__",
        "QQ====",
        "=",
        "QQ==QQ==",
        "é===",
    ],
)
def test_other_base64_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        decode_base64(text)


def test_control_the_standard_library_accepts_set_padding_bits() -> None:
    """The reason for re-encoding: two texts, one value."""
    assert base64.b64decode("QR==", validate=True) == base64.b64decode("QQ==", validate=True)


@given(st.binary(max_size=200))
def test_any_bytes_give_an_envelope_or_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Envelope.parse(data)


def parsed_whole(data: bytes) -> Envelope:
    """The definition: the whole is one canonical JSON value, payload and all."""
    value = canonical_json.parse_canonical(data)
    assert isinstance(value, dict)
    assert value.keys() == {"payload", "payloadType", "signatures"}
    payload, payload_type, signatures = value["payload"], value["payloadType"], value["signatures"]
    assert isinstance(payload, str)
    assert isinstance(payload_type, str)
    assert isinstance(signatures, list)
    found = []
    for each in signatures:
        assert isinstance(each, dict)
        sig, keyid = each["sig"], each.get("keyid")
        assert isinstance(sig, str)
        assert keyid is None or isinstance(keyid, str)
        found.append(Signature(base64.b64decode(sig, validate=True), keyid))
    return Envelope(payload_type, base64.b64decode(payload, validate=True), tuple(found))


@given(st.data())
def test_what_is_accepted_is_what_the_whole_says(data: st.DataObject) -> None:
    changed = bytearray(SIGNED)
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(changed) - 1))
        piece = data.draw(st.sampled_from([b"", b'"', b"\\", b",", b"{", b"}", b" ", b"A", b"="]))
        changed[position : position + data.draw(st.integers(0, 2))] = piece
    try:
        envelope = Envelope.parse(bytes(changed))
    except Malformed:
        return
    assert envelope == parsed_whole(bytes(changed))
    assert envelope.encode() == bytes(changed)


@pytest.mark.parametrize(
    "data",
    [
        SIGNED[:-1] + b',"x":[' + b"{}," * 100_000 + b"{}]}",
        b'{"a":[' + b"{}," * 100_000 + b"{}]," + SIGNED[1:],
        b"[" * 100_000,
    ],
)
def test_a_large_frame_is_refused_unparsed(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_json, "parse_canonical", None)
    with pytest.raises(Malformed, match="at most 65536 bytes beside its payload"):
        Envelope.parse(data)
