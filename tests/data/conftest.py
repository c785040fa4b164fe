"""A site with real keys, a real trust root and corpora on disk, for the tests of ``data/``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from govray.data import admission, corpus
from govray.data.tokenizer import ByteTokenizer
from govray.governance.credential import Period, seal_credential
from govray.governance.keys import LocalSigner
from govray.governance.license import LICENSE_CATEGORIES
from govray.governance.policy import Policy, read_policy
from govray.governance.trust import Authority, Scope, TrustRoot, TrustState, sign_root

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
class Site:
    """A folder of corpora, whose credentials one authority signs."""

    folder: Path
    signer: LocalSigner = field(default_factory=LocalSigner.generate)
    trust: TrustState = field(init=False)
    policy: Policy = field(default_factory=lambda: read_policy(POLICY))

    def __post_init__(self) -> None:
        root = TrustRoot(
            name="site",
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
            ),
        )
        self.trust = TrustState.load(sign_root(root, [self.signer]), at=NOW)

    @property
    def corpora(self) -> Path:
        return self.folder / "corpora"

    def add(
        self, name: str, records: Mapping[str, bytes], license: str = "MIT", **facts: Any
    ) -> Path:
        """Build a corpus and sign its credential."""
        built = corpus.build(self.corpora, name, sorted(records.items()))
        self.sign(built, license, **facts)
        return built.folder

    def sign(self, built: corpus.Built, license: str = "MIT", **facts: Any) -> None:
        facts = {"issuer": "librarian", "valid": VALID} | facts
        credential = corpus.unsigned_credential(built, license=license, **facts)
        envelope = seal_credential(credential, [self.signer])
        (built.folder / corpus.CREDENTIAL_FILE).write_bytes(envelope)

    def prepare(self, name: str = "prepared", **changes: Any) -> admission.Prepared:
        arguments: dict[str, Any] = {
            "policy": self.policy,
            "tokenizer": ByteTokenizer(),
            "context": 16,
            "reserve_share": 0.2,
            "salt": b"\x07" * 32,
            "signer": self.signer,
            "max_quarantined": 0.5,
        }
        credentials = admission.verify_credentials(self.corpora, self.trust, at=NOW)
        arguments |= {"credentials": credentials} | changes
        return admission.prepare(self.corpora, self.folder / "out" / name, **arguments)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(scope="module")
def make_site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Site]:
    return lambda: Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """One local cluster for the tests of a module."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
