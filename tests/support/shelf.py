"""Corpora on disk whose credentials one real authority signs, for the tests of ``data/``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from govray.data import admission, corpus
from govray.data.corpus import read_credentials, verify_credentials
from govray.data.tokenizer import ByteTokenizer
from govray.governance.formats.keys import LocalSigner
from govray.governance.policy.credential import Period
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.trust.authority import Authority, Scope, TrustRoot
from govray.governance.trust.license import LICENSE_CATEGORIES
from govray.governance.trust.trust_state import TrustState

NOW = datetime(2026, 12, 1, tzinfo=UTC)
VALID = Period(from_="2026-11-01T00:00:00Z", until="2027-11-01T00:00:00Z")
POLICY = """
schema: govray.dev/depth-policy/v1
name: licences
version: 1
valid: {from: 2026-11-01, until: 2027-11-01}
on_expiry: stop
profiles:
  everything: {layers: all}
  upper_half: {layers: ["blocks[0.5:]", final_norm, head]}
  nothing: {layers: none}
rules:
  - {name: open, match: {license_category: [public_domain, permissive]}, profile: everything}
  - {name: weak, match: {license_category: [copyleft_limited]}, profile: upper_half}
  - {name: unknown-licence, match: {license_category: [unknown]}, profile: nothing}
"""


@dataclass
class Shelf:
    """A folder of corpora, one authority over them, an operator, and a policy."""

    folder: Path
    signer: LocalSigner = field(default_factory=LocalSigner.generate)
    other: LocalSigner = field(default_factory=LocalSigner.generate)  # the operator's second key
    trust: TrustState = field(init=False)
    policy: Policy = field(default_factory=lambda: read_policy(POLICY))

    def __post_init__(self) -> None:
        root = TrustRoot(
            name="shelf",
            version=1,
            expires="2028-01-01T00:00:00Z",
            keys=(self.signer.public_key,),
            threshold=1,
            authorities=(
                Authority(
                    name="librarian",
                    role="credential",
                    keys=(self.signer.public_key,),
                    threshold=1,
                    expires="2028-01-01T00:00:00Z",
                    scope=(
                        Scope(
                            corpus="*",
                            license_categories=LICENSE_CATEGORIES,
                            jurisdictions=("*",),
                            max_sensitivity="internal",
                        ),
                    ),
                ),
                Authority(
                    name="operator",
                    role="operator",
                    keys=(self.signer.public_key, self.other.public_key),
                    threshold=1,
                    expires="2028-01-01T00:00:00Z",
                ),
            ),
        )
        self.trust = TrustState.load(root.seal([self.signer]), at=NOW)

    @property
    def corpora(self) -> Path:
        return self.folder / "corpora"

    def add(
        self, name: str, records: Mapping[str, bytes], license: str = "MIT", **facts: Any
    ) -> Path:
        """Build a corpus and sign its credential."""
        secret = hashlib.sha256(name.encode()).digest()  # so that the reserve repeats
        built = corpus.build(self.corpora, name, sorted(records.items()), secret=secret)
        self.sign(built, license, **facts)
        return built.folder

    def sign(self, built: corpus.Built, license: str = "MIT", **facts: Any) -> None:
        facts = {"issuer": "librarian", "valid": VALID, "sensitivity": "public"} | facts
        credential = corpus.unsigned_credential(built, license=license, **facts)
        envelope = credential.seal([self.signer])
        (built.folder / corpus.CREDENTIAL_FILE).write_bytes(envelope)

    def prepare(self, name: str = "prepared", **changes: Any) -> admission.Prepared:
        """Prepare ``out/NAME``, or ``at`` a place; from the shelf's ``corpora`` or others.
        ``time``: the reference time."""
        arguments: dict[str, Any] = {
            "policy": self.policy,
            "tokenizer": ByteTokenizer(),
            "context": 16,
            "reserve_share": 0.2,
            "salt": b"\x07" * 32,
            "signer": self.signer,
            "trust": self.trust,
            "at": changes.pop("time", NOW),
            "max_quarantined": 0.5,
        }
        corpora = changes.pop("corpora", self.corpora)
        folder = changes.pop("at", self.folder / "out" / name)
        credentials = verify_credentials(corpora, read_credentials(corpora), self.trust, at=NOW)
        arguments |= {"credentials": credentials} | changes
        key = arguments.pop("signer")
        return admission.prepare(corpora, folder, signer=lambda: key, **arguments)
