"""The trust root: each rule kept from TUF, and what breaks without it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed, Untrusted
from govray.governance.formats.document import Document
from govray.governance.formats.dsse import IN_TOTO, Envelope, Signature, pae, sign_payload
from govray.governance.formats.keys import LocalSigner, PublicKey, Signer
from govray.governance.formats.statement import Subject, read, seal
from govray.governance.trust.authority import (
    SENSITIVITIES,
    Authority,
    Delegation,
    Role,
    Scope,
    Sensitivity,
    TrustRoot,
)
from govray.governance.trust.license import LICENSE_CATEGORIES, LicenseCategory
from govray.governance.trust.trust_state import TrustState
from tests.support.table import each_row

AT = datetime(2026, 6, 1, tzinfo=UTC)
ROOT_EXPIRES = "2028-01-01T00:00:00Z"
EXPIRES = "2027-01-01T00:00:00Z"
AFTER = datetime(2027, 1, 1, tzinfo=UTC)
FILE = Subject.of("file", "sha256:" + "0" * 64)

ANYTHING = Scope(
    corpus="*",
    license_categories=LICENSE_CATEGORIES,
    jurisdictions=("*",),
    max_sensitivity="restricted",
)
NARROW = Scope(
    corpus="acme-*",
    license_categories=("permissive", "commercial"),
    jurisdictions=("DE", "FR"),
    max_sensitivity="confidential",
)


class Claim(Document):
    """Stands for what an authority signs."""

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/test/claim/v1"

    text: str


def keys(count: int) -> tuple[LocalSigner, ...]:
    """Signers of both algorithms by turns."""
    return tuple(
        LocalSigner.generate("ecdsa-p256" if number % 2 else "ed25519") for number in range(count)
    )


def public(signers: Sequence[Signer]) -> tuple[PublicKey, ...]:
    return tuple(signer.public_key for signer in signers)


class Simulator:
    """An organisation: root keys (2 of 3), one authority of each role, and their signers."""

    def __init__(self) -> None:
        self.root_keys = keys(3)
        self.issuer, self.compliance, self.operator = keys(2), keys(3), keys(1)
        self.supplier, self.agency = keys(2), keys(1)

    def authority(
        self, name: str, role: Role, signers: Sequence[Signer], **fields: Any
    ) -> Authority:
        defaults: dict[str, Any] = {
            "threshold": 1,
            "expires": EXPIRES,
            "scope": (NARROW,) if role == "credential" else None,
        }
        return Authority(name=name, role=role, keys=public(signers), **(defaults | fields))

    def root(self, **fields: Any) -> TrustRoot:
        defaults: dict[str, Any] = {
            "name": "acme",
            "version": 3,
            "expires": ROOT_EXPIRES,
            "keys": public(self.root_keys),
            "threshold": 2,
            "authorities": (
                self.authority("legal", "credential", self.issuer),
                self.authority(
                    "compliance",
                    "policy",
                    self.compliance,
                    threshold=2,
                    minimum_policy_versions={"licences": 4},
                ),
                self.authority("cluster", "operator", self.operator),
            ),
        }
        return TrustRoot(**(defaults | fields))

    def signed_root(self, signers: Sequence[Signer] | None = None, **fields: Any) -> bytes:
        return self.root(**fields).seal(signers or self.root_keys[:2])

    def delegation(
        self,
        delegator: str = "legal",
        signers: Sequence[Signer] | None = None,
        *,
        name: str = "supplier",
        to: Sequence[Signer] | None = None,
        role: Role = "credential",
        **fields: Any,
    ) -> bytes:
        child = self.authority(name, role, to or self.supplier, **fields)
        return Delegation(delegator=delegator, authority=child).seal(signers or self.issuer[:1])

    def trust(self, *delegations: bytes) -> TrustState:
        return TrustState.load(self.signed_root(), at=AT, delegations=delegations)


SIM = Simulator()
ROOT = SIM.signed_root()
DIGEST = read(TrustRoot, Envelope.parse(ROOT)).digest


def claim(signers: Sequence[Signer]) -> bytes:
    return seal(Claim(text="a"), [FILE], signers)


def test_what_an_authority_signs_is_verified() -> None:
    trust = SIM.trust()
    data = claim([*SIM.compliance[:2], *keys(1)])
    verified = trust.verify(Claim, data, role="policy", at=AT)
    assert verified.document == Claim(text="a")
    assert verified.subjects == (FILE,)
    assert verified.digest == read(Claim, Envelope.parse(data)).digest
    assert verified.authority.name == "compliance"
    assert verified.keyids == {signer.public_key.keyid for signer in SIM.compliance[:2]}


def test_the_root_needs_its_own_threshold() -> None:
    TrustState.load(SIM.signed_root(SIM.root_keys[1:]), at=AT)
    with pytest.raises(Untrusted, match="1 of 2 distinct keys"):
        TrustState.load(SIM.signed_root(SIM.root_keys[:1]), at=AT)
    with pytest.raises(Untrusted, match="1 of 2 distinct keys"):
        TrustState.load(SIM.signed_root([SIM.root_keys[0], *keys(3)]), at=AT)


def test_two_signatures_by_one_key_are_one() -> None:
    """ECDSA gives two different signatures of one key; the keyids beside them differ too."""
    signer = SIM.compliance[1]
    payload = Envelope.parse(claim([signer])).payload
    message = pae(IN_TOTO, payload)
    envelope = Envelope(
        IN_TOTO,
        payload,
        (
            Signature(signer.sign(message), signer.public_key.keyid),
            Signature(signer.sign(message), SIM.compliance[0].public_key.keyid),
        ),
    )
    with pytest.raises(Untrusted, match="1 of 2 distinct keys of the policy authority 'compl"):
        SIM.trust().verify(Claim, envelope.encode(), role="policy", at=AT)
    # Control: who counts signatures instead of keys would have accepted.
    assert len(envelope.signatures) == 2


@each_row(
    ("change", "names"),
    [
        *(({"threshold": number}, "threshold") for number in (0, 4, -1)),
        ({"keys": [SIM.root().to_json()["keys"][0]] * 2}, "same key is listed twice"),
        ({"authorities": SIM.root().to_json()["authorities"][:1] * 2}, "two authorities are named"),
    ],
)
def test_malformed_roots(change: dict[str, Any], names: str) -> None:
    with pytest.raises(Malformed, match=names):
        TrustRoot.from_json(SIM.root().to_json() | change)


@each_row("signers", [keys(1), SIM.root_keys, SIM.compliance, SIM.operator])
def test_no_other_key_counts(signers: Sequence[Signer]) -> None:
    with pytest.raises(Untrusted, match=r"no signature verifies under any credential .*legal"):
        SIM.trust().verify(Claim, claim(signers), role="credential", at=AT)


def test_the_role_is_the_callers_not_the_signers() -> None:
    data = claim(SIM.compliance)
    SIM.trust().verify(Claim, data, role="policy", at=AT)
    for role in ("credential", "operator"):
        with pytest.raises(Untrusted, match="no signature verifies"):
            SIM.trust().verify(Claim, data, role=role, at=AT)


def test_a_root_is_refused_from_its_expiry_on() -> None:
    expires = datetime(2028, 1, 1, tzinfo=UTC)
    TrustState.load(ROOT, at=expires - timedelta(seconds=1))
    with pytest.raises(Untrusted, match="expired at 2028-01-01"):
        TrustState.load(ROOT, at=expires)


def test_an_authority_is_refused_from_its_expiry_on() -> None:
    """And accepted for any time before, however late one looks."""
    trust, data = SIM.trust(), claim(SIM.operator)
    trust.verify(Claim, data, role="operator", at=AFTER - timedelta(seconds=1))
    with pytest.raises(Untrusted, match="'cluster' signed it but expired at 2027-01-01"):
        trust.verify(Claim, data, role="operator", at=AFTER)


def test_the_roots_expiry_bounds_its_authorities() -> None:
    long = SIM.authority("cluster", "operator", SIM.operator, expires="2099-01-01T00:00:00Z")
    trust = TrustState.load(SIM.signed_root(authorities=(long,)), at=AT)
    with pytest.raises(Untrusted, match="expired at 2028-01-01"):
        trust.verify(
            Claim, claim(SIM.operator), role="operator", at=datetime(2028, 1, 1, tzinfo=UTC)
        )


def test_a_root_never_goes_back() -> None:
    newer = SIM.signed_root(version=4)
    TrustState.load(newer, at=AT, previous=ROOT)
    TrustState.load(ROOT, at=AT, previous=ROOT)
    with pytest.raises(Untrusted, match="version 3 is older than the trusted version 4"):
        TrustState.load(ROOT, at=AT, previous=newer)
    # Control: without the root trusted so far, the older one passes.
    TrustState.load(ROOT, at=AT)


def test_one_version_has_one_content() -> None:
    other = SIM.signed_root(authorities=())
    with pytest.raises(Untrusted, match="two different roots call themselves version 3"):
        TrustState.load(other, at=AT, previous=ROOT)
    further = Envelope.parse(ROOT).cosign([SIM.root_keys[2]])
    assert TrustState.load(further, at=AT, previous=ROOT).digest == DIGEST


def test_a_root_of_another_name_is_refused() -> None:
    with pytest.raises(Untrusted, match="the root is 'other', the trusted one 'acme'"):
        TrustState.load(SIM.signed_root(name="other", version=9), at=AT, previous=ROOT)


def test_rotation_needs_the_old_threshold_and_the_new_one() -> None:
    fresh = keys(2)
    changed = {"version": 7, "keys": public(fresh), "threshold": 2}
    both = SIM.signed_root([*fresh, *SIM.root_keys[1:]], **changed)
    assert TrustState.load(both, at=AT, previous=ROOT).root.version == 7
    with pytest.raises(Untrusted, match=r"0 of 2 distinct keys \(the previous root's"):
        TrustState.load(SIM.signed_root(fresh, **changed), at=AT, previous=ROOT)
    with pytest.raises(Untrusted, match=r"1 of 2 distinct keys \(the previous root's"):
        TrustState.load(
            SIM.signed_root([*fresh, SIM.root_keys[0]], **changed), at=AT, previous=ROOT
        )
    with pytest.raises(Untrusted, match=r"0 of 2 distinct keys \(the trust root's own"):
        TrustState.load(SIM.signed_root(SIM.root_keys, **changed), at=AT, previous=ROOT)
    # Control: without the previous root, anybody's fresh root is as good as any.
    TrustState.load(SIM.signed_root(fresh, **changed), at=AT)


def test_an_expired_root_can_still_be_rotated_away() -> None:
    late = datetime(2029, 1, 1, tzinfo=UTC)
    newer = SIM.signed_root(version=4, expires="2030-01-01T00:00:00Z")
    assert TrustState.load(newer, at=late, previous=ROOT).root.version == 4


def test_the_lowest_accepted_policy_version_can_be_raised_only() -> None:
    def stating(**versions: int) -> bytes:
        return SIM.delegation(
            "compliance",
            SIM.compliance[:2],
            name="team",
            role="policy",
            minimum_policy_versions=versions,
        )

    assert SIM.trust().minimum_policy_version("licences") == 4
    assert SIM.trust().minimum_policy_version("other") == 1
    assert SIM.trust(stating(licences=6)).minimum_policy_version("licences") == 6
    assert SIM.trust(stating(licences=2)).minimum_policy_version("licences") == 4
    empty = TrustState.load(SIM.signed_root(authorities=()), at=AT)
    assert empty.minimum_policy_version("licences") == 1


def test_a_delegation_chain_ends_in_an_authority() -> None:
    """In any order of the envelopes."""
    first = SIM.delegation()
    second = SIM.delegation("supplier", SIM.supplier[:1], name="agency", to=SIM.agency)
    for order in ((first, second), (second, first)):
        trust = SIM.trust(*order)
        verified = trust.verify(Claim, claim(SIM.agency), role="credential", at=AT)
        assert verified.authority.name == "agency"
    # Control: without the chain, the agency is nobody.
    with pytest.raises(Untrusted, match="no signature verifies"):
        SIM.trust(first).verify(Claim, claim(SIM.agency), role="credential", at=AT)


WIDER: dict[str, dict[str, Any]] = {
    "corpus": {"corpus": "a*"},
    "all corpora": {"corpus": "*"},
    "exact name outside": {"corpus": "acme"},
    "category": {"license_categories": ("permissive", "copyleft")},
    "jurisdiction": {"jurisdictions": ("DE", "US")},
    "any jurisdiction": {"jurisdictions": ("*",)},
    "sensitivity": {"max_sensitivity": "restricted"},
}


@each_row("change", WIDER.values())
def test_a_delegation_never_widens_its_scope(change: dict[str, Any]) -> None:
    scope = NARROW.model_copy(update=change)
    with pytest.raises(Untrusted, match="not within any scope of 'legal'"):
        SIM.trust(SIM.delegation(scope=(NARROW, scope)))


def test_control_without_the_check_a_delegate_covers_more_than_its_delegator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stated: Any = {
        "corpus": "anything",
        "license_category": "unknown",
        "jurisdiction": "US",
        "sensitivity": "restricted",
    }
    assert not any(authority.covers(**stated) for authority in SIM.trust().authorities)
    monkeypatch.setattr(Scope, "within", lambda self, other: True)
    widened = SIM.trust(SIM.delegation(scope=(ANYTHING,)))
    assert any(authority.covers(**stated) for authority in widened.authorities)


NARROWER: dict[str, dict[str, Any]] = {
    "the same": {},
    "exact name": {"corpus": "acme-notes"},
    "longer prefix": {"corpus": "acme-notes-*"},
    "category": {"license_categories": ("commercial",)},
    "jurisdiction": {"jurisdictions": ("FR",)},
    "sensitivity": {"max_sensitivity": "public"},
}


@each_row("change", NARROWER.values())
def test_a_delegation_may_narrow_its_scope(change: dict[str, Any]) -> None:
    assert SIM.trust(SIM.delegation(scope=(NARROW.model_copy(update=change),)))


@each_row(
    ("delegation", "names"),
    [
        (SIM.delegation(expires="2027-01-01T00:00:01Z"), "after its delegator at 2027-01-01"),
        (SIM.delegation(role="policy"), "role 'policy' is not its delegator's, 'credential'"),
        (SIM.delegation(signers=keys(2)), r"0 of 1 distinct keys \('legal''s"),
        (SIM.delegation(signers=SIM.root_keys), "0 of 1 distinct keys"),
        (SIM.delegation("compliance", SIM.compliance[:1], role="policy"), "1 of 2 distinct keys"),
        (SIM.delegation(name="legal"), "name 'legal' is already taken"),
        (SIM.delegation(name="cluster"), "name 'cluster' is already taken"),
        (SIM.delegation("nobody"), "delegator 'nobody' is not an authority"),
        (SIM.delegation("supplier", SIM.supplier), "delegator 'supplier' is not an authority"),
    ],
)
def test_delegations_refused(delegation: bytes, names: str) -> None:
    with pytest.raises(Untrusted, match=names) as caught:
        SIM.trust(delegation)
    assert str(caught.value.where).startswith("delegation 1 ('")


def test_neither_a_circle_of_delegations_nor_one_given_twice_counts() -> None:
    first = SIM.delegation("agency", SIM.agency, name="supplier")
    second = SIM.delegation("supplier", SIM.supplier[:1], name="agency", to=SIM.agency)
    with pytest.raises(Untrusted, match="nor one that the root leads to"):
        SIM.trust(first, second)
    with pytest.raises(Untrusted, match="already taken"):
        SIM.trust(SIM.delegation(), SIM.delegation())


patterns = st.text("ab-", min_size=1, max_size=3).filter(lambda t: t[0] != "-")
scopes = st.builds(
    lambda corpus, star, categories, places, sensitivity: Scope(
        corpus=corpus + star,
        license_categories=tuple(categories),
        jurisdictions=tuple(places),
        max_sensitivity=sensitivity,
    ),
    st.just("") | patterns,
    st.just("*"),
    st.sets(st.sampled_from(LICENSE_CATEGORIES), min_size=1),
    st.sets(st.sampled_from(["*", "DE", "FR"]), min_size=1),
    st.sampled_from(SENSITIVITIES),
) | st.builds(lambda corpus: NARROW.model_copy(update={"corpus": corpus}), patterns)


@given(
    scopes,
    scopes,
    patterns,
    st.sampled_from(LICENSE_CATEGORIES),
    st.sampled_from(["DE", "FR", "US"]),
    st.sampled_from(SENSITIVITIES),
)
def test_what_is_within_covers_nothing_more(
    inner: Scope,
    outer: Scope,
    corpus: str,
    category: LicenseCategory,
    place: str,
    sensitivity: Sensitivity,
) -> None:
    """`within` against its meaning: for every credential, inner covers it only if outer does."""
    stated: Any = {
        "corpus": corpus,
        "license_category": category,
        "jurisdiction": place,
        "sensitivity": sensitivity,
    }
    assert inner.within(inner)
    if inner.within(outer) and inner.covers(**stated):
        assert outer.covers(**stated)


@each_row(
    ("change", "covered"),
    [
        ({}, True),
        ({"corpus": "acme-"}, True),
        ({"corpus": "acme"}, False),
        ({"corpus": "other"}, False),
        ({"license_category": "copyleft"}, False),
        ({"license_category": "unknown"}, False),
        ({"jurisdiction": "US"}, False),
        ({"sensitivity": "public"}, True),
        ({"sensitivity": "restricted"}, False),
    ],
)
def test_a_scope_is_the_product_of_four_restrictions(change: dict[str, Any], covered: bool) -> None:
    stated: dict[str, Any] = {
        "corpus": "acme-notes",
        "license_category": "commercial",
        "jurisdiction": "DE",
        "sensitivity": "confidential",
    } | change
    authority = SIM.authority("legal", "credential", SIM.issuer)
    assert NARROW.covers(**stated) is covered
    assert authority.covers(**stated) is covered


def test_the_payload_is_read_only_after_a_signature_verifies() -> None:
    """A payload that is no JSON at all: strangers learn nothing about the parser."""
    data = sign_payload(b"\xff", keys(1))
    with pytest.raises(Untrusted):
        SIM.trust().verify(Claim, data, role="operator", at=AT)
    with pytest.raises(Malformed):
        SIM.trust().verify(Claim, sign_payload(b"\xff", SIM.operator), role="operator", at=AT)


def test_one_kind_of_document_is_not_another() -> None:
    with pytest.raises(Malformed, match="predicate type"):
        SIM.trust().verify(Delegation, claim(SIM.issuer), role="credential", at=AT)
    with pytest.raises(Malformed, match="predicate type"):
        TrustState.load(SIM.delegation(), at=AT)
    with pytest.raises(Malformed, match="predicate type"):
        SIM.trust(ROOT)
