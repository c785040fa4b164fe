"""Credentials: what they may state, and who may state it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from govray.errors import Malformed, Untrusted
from govray.governance.formats import canonical_json
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.statement import Subject, seal
from govray.governance.policy.credential import (
    Credential,
    Period,
    verify_credential,
)
from govray.governance.trust.authority import Authority, Scope, TrustRoot
from govray.governance.trust.trust_state import TrustState
from tests.support.table import each_row

AT = datetime(2026, 6, 1, tzinfo=UTC)
ROOT = "sha256:" + "ab" * 32

JSON: dict[str, Any] = {
    "schemaVersion": "v1",
    "corpus": "acme-notes",
    "license": "LicenseRef-Acme",
    "licenseCategory": "commercial",
    "use": "commercial",
    "jurisdiction": "NO",
    "sensitivity": "confidential",
    "valid": {"from": "2026-01-01T00:00:00Z", "until": "2027-01-01T00:00:00Z"},
    "issuer": "acme",
    "records": {"root": ROOT, "count": "4096", "commitment": ROOT},
}

OPTIONAL: dict[str, Any] = {
    "description": {
        "source": "licensed",
        "url": "https://acme.example/notes",
        "collected": {"first": "2025-01", "last": "2025-06"},
        "modality": ["text", "code"],
        "languages": ["en", "nb-NO"],
        "optOut": "honoured",
        "optOutMeasures": "Authors who objected before 2025 are left out.",
        "personalData": "pseudonymised",
    },
    "normalisation": ["newlines", "nfc"],
    "piiScan": {
        "analyzer": "presidio-analyzer 2.2.366",
        "entities": ["EMAIL_ADDRESS", "US_SSN"],
        "score": 0.5,
    },
}


class Deployment:
    """Real keys and a root: ``acme`` for its own notes, ``other`` for everything."""

    def __init__(self) -> None:
        self.acme, self.other, self.root = (LocalSigner.generate() for _ in range(3))
        narrow = Scope(
            corpus="acme-*",
            license_categories=("commercial",),
            jurisdictions=("NO", "SE"),
            max_sensitivity="confidential",
        )
        wide = Scope(
            corpus="*",
            license_categories=("permissive", "commercial"),
            jurisdictions=("*",),
            max_sensitivity="restricted",
        )
        self.trust = self.trusting(
            self.authority("acme", self.acme, narrow), self.authority("other", self.other, wide)
        )

    def trusting(self, *authorities: Authority) -> TrustState:
        root = TrustRoot(
            name="deployment",
            version=1,
            expires="2030-01-01T00:00:00Z",
            keys=(self.root.public_key,),
            threshold=1,
            authorities=authorities,
        )
        return TrustState.load(root.seal([self.root]), at=AT)

    @staticmethod
    def authority(name: str, signer: LocalSigner, scope: Scope) -> Authority:
        return Authority(
            name=name,
            role="credential",
            keys=(signer.public_key,),
            threshold=1,
            expires="2029-01-01T00:00:00Z",
            scope=(scope,),
        )


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return Deployment()


def credential(**changes: Any) -> Credential:
    return Credential.from_json({**JSON, **changes})


def test_golden_class() -> None:
    """The class digest names shard folders and stands in manifests, so its bytes are fixed."""
    cls = credential().credential_class
    assert canonical_json.encode(cls.to_json()) == (
        b'{"corpus":"acme-notes","jurisdiction":"NO","license":"LicenseRef-Acme",'
        b'"licenseCategory":"commercial","sensitivity":"confidential","use":"commercial"}'
    )
    assert cls.digest == "sha256:51f9713e396ff8341f002cc741433c936bffa68f3625075461c21b34f2e60226"
    assert str(cls) == (
        "corpus=acme-notes, license=LicenseRef-Acme, license_category=commercial, "
        "jurisdiction=NO, sensitivity=confidential, use=commercial"
    )


@each_row(
    ("changes", "message"),
    [
        ({"schemaVersion": "v2"}, "schemaVersion"),
        ({"schemaVersion": 1}, "schemaVersion"),
        ({"note": "x"}, "unknown field 'note'"),
        ({"corpus": "../acme"}, "corpus"),
        ({"license": "licenseref acme"}, "no SPDX licence expression"),
        ({"license": "mit", "licenseCategory": "permissive"}, "write 'MIT'"),
        ({"license": "GPL-3.0-only", "licenseCategory": "permissive"}, "gives copyleft"),
        ({"license": "GPL-3.0-only", "licenseCategory": "commercial"}, "gives copyleft"),
        (
            {"license": "GPL-3.0-only AND LicenseRef-Acme", "licenseCategory": "permissive"},
            "gives copyleft to unknown",
        ),
        ({"license": "NOASSERTION"}, "gives unknown"),
        ({"license": "CC-BY-NC-4.0"}, "use 'commercial' is wider"),
        ({"jurisdiction": "EU"}, "ISO 3166-1"),
        ({"jurisdiction": "no"}, "ISO 3166-1"),
        ({"sensitivity": "secret"}, "sensitivity"),
        ({"valid": {"from": "2027-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}}, "before"),
        ({"valid": {"from": "2026-01-01", "until": "2027-01-01T00:00:00Z"}}, "not a time"),
        ({"records": {"root": ROOT, "count": 4096, "commitment": ROOT}}, "count"),
        ({"records": {"root": ROOT.upper(), "count": "1", "commitment": ROOT}}, "root"),
        ({"records": {"root": ROOT, "count": "1"}}, "commitment"),
        ({"description": {"source": "other", "languages": []}}, "languages"),
        ({"description": {"source": "other", "url": "javascript:alert(1)"}}, "url"),
        ({"description": None}, "null"),
        ({"piiScan": OPTIONAL["piiScan"] | {"entities": []}}, "entities"),
        ({"piiScan": OPTIONAL["piiScan"] | {"entities": ["jane@example.org"]}}, "entities"),
        ({"piiScan": OPTIONAL["piiScan"] | {"score": 0}}, "score"),
        ({"piiScan": OPTIONAL["piiScan"] | {"analyzer": "presidio"}}, "analyzer"),
        ({"piiScan": OPTIONAL["piiScan"] | {"found": "0"}}, "found"),
    ],
)
def test_malformed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Malformed, match=message):
        credential(**changes)


def test_verified(deployment: Deployment) -> None:
    data = credential().seal([deployment.acme])
    verified = verify_credential(deployment.trust, data, at=AT)
    assert verified.document == credential()
    assert verified.authority.name == "acme"
    assert [(s.name, s.sha256) for s in verified.subjects] == [("acme-notes", ROOT)]


@each_row(
    ("changes", "message"),
    [
        ({"corpus": "bolt-notes"}, "outside the scope"),
        ({"license": "MIT", "licenseCategory": "permissive"}, "outside the scope"),
        ({"jurisdiction": "DK"}, "outside the scope"),
        ({"jurisdiction": "ZZ"}, "outside the scope"),
        ({"sensitivity": "restricted"}, "outside the scope"),
        ({"issuer": "other"}, "names 'other' as issuer, but acme signed it"),
        ({"issuer": "nobody"}, "names 'nobody' as issuer"),
        (
            {"valid": {"from": "2025-01-01T00:00:00Z", "until": "2026-06-01T00:00:00Z"}},
            "expired at 2026-06-01",
        ),
        (
            {"valid": {"from": "2026-06-01T00:00:01Z", "until": "2027-01-01T00:00:00Z"}},
            "not valid before 2026-06-01",
        ),
    ],
)
def test_refused(deployment: Deployment, changes: dict[str, Any], message: str) -> None:
    data = credential(**changes).seal([deployment.acme])
    # Control: the signature itself is good, so the refusal is about the statement.
    deployment.trust.verify(Credential, data, role="credential", at=AT)
    with pytest.raises(Untrusted, match=message) as caught:
        verify_credential(deployment.trust, data, at=AT)
    assert repr(changes.get("corpus", "acme-notes")) in str(caught.value)
    assert caught.value.do is not None


@pytest.mark.parametrize(
    "subjects",
    [
        [Subject.of("acme-notes", "sha256:" + "cd" * 32)],
        [Subject.of("acme-other", ROOT)],
        [Subject.of("acme-notes", ROOT), Subject.of("acme-other", ROOT)],
    ],
)
def test_refused_for_another_subject(deployment: Deployment, subjects: list[Subject]) -> None:
    data = seal(credential(), subjects, [deployment.acme])
    deployment.trust.verify(Credential, data, role="credential", at=AT)
    with pytest.raises(Untrusted, match="subject"):
        verify_credential(deployment.trust, data, at=AT)


def test_the_issuer_counts_among_several_signers(deployment: Deployment) -> None:
    """A co-signature by another authority lends the issuer none of its scope."""
    both = [deployment.other, deployment.acme]
    inside = credential(issuer="acme").seal(both)
    assert verify_credential(deployment.trust, inside, at=AT).document.issuer == "acme"
    outside = credential(issuer="acme", jurisdiction="DK").seal(both)
    with pytest.raises(Untrusted, match="outside the scope"):
        verify_credential(deployment.trust, outside, at=AT)
    by_other = credential(issuer="other", jurisdiction="DK").seal(both)
    assert verify_credential(deployment.trust, by_other, at=AT).document.issuer == "other"


def test_a_period_is_half_open() -> None:
    period = Period(from_="2026-01-01T00:00:00Z", until="2027-01-01T00:00:00Z")
    start, second = datetime(2026, 1, 1, tzinfo=UTC), timedelta(seconds=1)
    assert [period.contains(start + d) for d in (-second, 0 * second)] == [False, True]
    assert [period.contains(period.expires + d) for d in (-second, 0 * second)] == [True, False]
