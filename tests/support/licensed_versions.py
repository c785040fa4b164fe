"""Versions of one model that differ in what reached their blocks, and in how they were judged.

======= ======= ===================================================================================
version  loss   what reached the blocks
======= ======= ===================================================================================
1.0.0    2.0    permissive corpora alone
1.1.0    1.5    the same; copyleft trained the head, so it came to the blocks by other paths
1.2.0    1.0    copyleft in one block, with the weight 0.001
1.3.0    0.9    a corpus of unknown licence
1.4.0    0.8    an unknown start, in one block
1.5.0           permissive corpora alone; it was not judged
1.6.0    0.1    the same; its own loop judged it
1.7.0    3.0    copyleft is admitted for all blocks, and its plan leaves it out
======= ======= ===================================================================================

``gamma`` is the copyleft corpus. All are judged on ``held-out``.
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

from sqlmodel import Session

from govray.governance.attestation.validation_result import ValidationResult
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.trust.authority import Authority, Scope
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.store import registry
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.model_index import index_model
from tests.support.shelf_of_models import KEY, for_this_run
from tests.support.stated_world import from_existing_weights
from tests.support.world import DIGEST, World

EVE = ChangedBy(user="eve", at="2026-11-20T10:00:00Z")
MODEL = "gpt"

POLICY = """
schema: govray.dev/depth-policy/v1
name: licences
version: 3
valid: {from: 2026-11-01, until: 2027-11-01}
on_expiry: stop
profiles:
  everything: {layers: all}
  narrow: {layers: {%s}}
rules:
  - {name: open, match: {license_category: [permissive, unknown]}, profile: everything}
  - {name: narrow, match: {license_category: [copyleft]}, profile: narrow}
"""
HEAD, SMALL, ALL = "head: 1", "head: 1, block.0: 0.001", 'head: 1, "blocks[0:]": 1'


class Licensed(World):
    """One whose supplier may speak for all licences. ``gamma`` is copyleft."""

    def __init__(self) -> None:
        super().__init__(quotas={"everything": 3, "narrow": 1})

    def authorities(self) -> tuple[Authority, ...]:
        archive, *others = super().authorities()
        every = ("permissive", "copyleft_limited", "copyleft", "commercial", "unknown")
        scope = archive.scope[0].model_copy(update={"license_categories": every})
        assert isinstance(scope, Scope)
        return (archive.model_copy(update={"scope": (scope,)}), *others)

    def issue(self, corpus: str, **given: Any) -> bytes:
        if corpus == "gamma":
            given = {"license": "GPL-3.0-only", "license_category": "copyleft"} | given
        return super().issue(corpus, **given)

    def of(self, *corpora: str, narrow: str = HEAD) -> World:
        world = copy.copy(self)
        world.records = {c: self.records[c] for c in corpora}
        world.credentials = {c: self.credentials[c] for c in corpora}
        world.policy = read_policy(POLICY % narrow).seal(self.keys.compliance)
        return world


def judged(value: float, corpora: bool = True) -> ValidationResult:
    measured = {"held-out": DIGEST} if corpora else None
    return ValidationResult(metric="loss", goal="min", value=value, corpora=measured)


@cache
def verified() -> tuple[World, dict[str, VerifiedModel]]:
    """The organisation, and the model of each version."""
    world, folder = Licensed(), for_this_run("licensed")
    unstated = world.of("alpha", "beta")
    unstated.credentials["beta"] = world.issue(
        "beta", license="LicenseRef-beta", license_category="unknown"
    )
    plain, head = world.of("alpha", "beta"), world.of("alpha", "gamma")
    small, everywhere = (world.of("alpha", "gamma", narrow=each) for each in (SMALL, ALL))
    start = {"pretrained": {"block.1": ["unknown"]}, "attestation": from_existing_weights}
    made: dict[str, tuple[World, dict[str, Any]]] = {
        "1.0.0": (plain, {"validation": judged(2.0)}),
        "1.1.0": (head, {"validation": judged(1.5)}),
        "1.2.0": (small, {"validation": judged(1.0)}),
        "1.3.0": (unstated, {"validation": judged(0.9)}),
        "1.4.0": (plain, {"validation": judged(0.8)} | start),
        "1.5.0": (plain, {}),
        "1.6.0": (plain, {"validation": judged(0.1, corpora=False)}),
        "1.7.0": (everywhere, {"validation": judged(3.0), "plan": lambda p: p.without("gamma")}),
    }
    return world, {
        version: _verified(each, folder / version, version, given)
        for version, (each, given) in made.items()
    }


def _verified(world: World, folder: Path, version: str, given: dict[str, Any]) -> VerifiedModel:
    return world.verify(world.deploy(folder, run=f"run-{version}", **given))


def register_all(session: Session, *, public: str | None = None) -> None:
    """Index and register all, and commit. ``public``: the version that anyone may read."""
    world, models = verified()
    for version, each in models.items():
        row = index_model(
            session, each, trust_root=world.root, key=KEY, public=version == public or None
        )
        registry.register(session, model=MODEL, version=version, attestation=row.digest, by=EVE)
    session.commit()
