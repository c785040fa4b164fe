"""A small real deployment: keys, a trust root, a policy, three corpora. No mocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from govray.data.corpus import build, unsigned_credential
from govray.governance.formats.document import format_time
from govray.governance.formats.keys import LocalSigner
from govray.governance.policy.credential import Period
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.trust.authority import Authority, Scope, TrustRoot
from govray.train.inputs.experiment_config import parse_experiment

if TYPE_CHECKING:
    from govray.train.driver.trainer import GovernedTrainer

POLICY = """
schema: govray.dev/depth-policy/v1
name: test
version: 1
valid: {from: 2020-01-01, until: 2099-01-01}
on_expiry: stop
profiles:
  everything: {layers: all}
  upper_half: {layers: ["blocks[0.5:]", final_norm, head]}
  removable: {layers: none, adapter: "{corpus}", rank: 4}
  nothing: {layers: none}
rules:
  - {name: open, match: {license_category: [permissive]}, profile: everything}
  - {name: weak, match: {license_category: [copyleft_limited]}, profile: upper_half}
  - {name: contracts, match: {license_category: [commercial]}, profile: removable}
  - {name: unknown, match: {license_category: [unknown]}, profile: nothing}
"""

LICENCES = {
    "open-one": ("MIT", "permissive"),
    "open-two": ("Apache-2.0", "permissive"),
    "weak-one": ("LGPL-3.0-only", "copyleft_limited"),
    "acme": ("LicenseRef-acme", "commercial"),
    "mystery": ("NOASSERTION", "unknown"),
}

CORPUS_SECRET = bytes(range(32))
"""Of every corpus. Leaves follow from it, and with the salt they decide what is held back."""


def targets_of(rows: int, context: int, corpora: int = 1) -> range:
    """Loss targets that so many distinct rows may have: the last row of a corpus may be short.

    How long it is depends on the salt, which decides what is held back.
    """
    return range(rows * context - corpora * (context - 1), rows * context + 1)


@dataclass
class Deployment:
    """Paths and keys; everything is signed by real keys made for this test."""

    folder: Path
    at: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    policy_text: str = POLICY
    lifetime: timedelta = timedelta(days=2)
    rooted: timedelta = timedelta(days=30)
    issued: datetime | None = None
    """What its credentials say of their issue."""
    generate: Callable[[], LocalSigner] = LocalSigner.generate

    def __post_init__(self) -> None:
        self.signers = {
            name: self.generate()
            for name in ("root", "issuer", "compliance", "operator", "auditor")
        }
        self.corpora = self.folder / "corpora"
        self.root = self.folder / "root.json"
        self.key = self.folder / "operator.pem"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.key.write_bytes(self.signers["operator"].to_pem())
        self.key.chmod(0o600)
        self.root.write_bytes(self._root().seal([self.signers["root"]]))
        self.policy = self.sign_policy(self.policy_text)
        for corpus in LICENCES:
            self.add(corpus)

    def sign_policy(self, text: str) -> Path:
        """Sign a policy's source; returns the envelope's path, named by its content."""
        path = self.folder / f"policy-{hashlib.sha256(text.encode()).hexdigest()[:8]}.dsse.json"
        path.write_bytes(read_policy(text).seal([self.signers["compliance"]]))
        return path

    def add(self, corpus: str, *, until: datetime | None = None) -> None:
        """Build a corpus of a few kilobytes, and sign its credential."""
        licence, category = LICENCES[corpus]
        text = f"{corpus} says: the quick brown fox number {{}} jumps over the lazy dog. "
        records = ((f"{i:03d}.txt", (text.format(i) * 12).encode()) for i in range(24))
        built = build(self.corpora, corpus, records, secret=CORPUS_SECRET)
        credential = unsigned_credential(
            built,
            license=licence,
            license_category=category if licence.startswith("LicenseRef") else None,
            issuer="issuer",
            sensitivity="public",
            valid=Period(
                from_=format_time(self.at - self.lifetime),
                until=format_time(until or self.at + self.lifetime),
            ),
            **({"issued": format_time(self.issued)} if self.issued else {}),
        )
        (self.corpora / corpus / "credential.dsse.json").write_bytes(
            credential.seal([self.signers["issuer"]])
        )

    def experiment(self, **changes: object) -> dict[str, object]:
        """An experiment over all of it, as its file would say it."""
        return {
            "name": "tiny",
            "hyperparameters": {"blocks": 2, "width": 32, "context": 32, "dropout": 0.1},
            "data": {
                "corpora": str(self.corpora),
                "rows_per_step": {"everything": 4, "upper_half": 2, "removable": 1},
                "epochs": 3,
                "reserve_by": "record",  # all of a corpus's are near copies
            },
            "governance": {
                "policy": str(self.policy),
                "trust_root": str(self.root),
                "max_quarantined": 0.5,
            },
            "optimizer": {"lr": 1e-2},
            "resources": {"num_workers": 2, "cpus_per_worker": 0.5},
            "max_steps": 12,
            "checkpoint": {"every_steps": 5},
            "max_restarts": 0,
            "storage_path": str(self.folder / "runs"),
            "attestation_key": str(self.key),
        } | changes

    def trainer(self, **changes: object) -> GovernedTrainer:
        """The trainer of such an experiment, with one worker."""
        from govray.train.driver.trainer import GovernedTrainer

        value = self.experiment(**{"resources": {"num_workers": 1}} | changes)
        return GovernedTrainer(parse_experiment(value, where="test"))

    def _root(self) -> TrustRoot:
        expires = format_time(self.at + self.rooted)

        def authority(name: str, role: str, scope: tuple[Scope, ...] | None) -> Authority:
            return Authority(
                name=name,
                role=role,
                keys=(self.signers[name].public_key,),
                threshold=1,
                expires=expires,
                scope=scope,
            )

        everything = Scope(
            corpus="*",
            license_categories=tuple(sorted({category for _, category in LICENCES.values()})),
            jurisdictions=("*",),
            max_sensitivity="restricted",
        )
        return TrustRoot(
            name="test",
            version=1,
            expires=expires,
            keys=(self.signers["root"].public_key,),
            threshold=1,
            authorities=(
                authority("issuer", "credential", (everything,)),
                authority("compliance", "policy", None),
                authority("operator", "operator", None),
                authority("auditor", "witness", None),
            ),
        )
