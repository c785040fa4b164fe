"""What a second party signs about a model of ``world.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.attestation.replay_check import ReplayCheck, sign_replay_check
from govray.governance.formats import canonical_json
from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.trust_state import Verified
from tests.support.world import ENVIRONMENT, RUN, World, unchecked

REPLAYED = "2026-11-12T10:00:00Z"


def attested(world: World, model: Path) -> tuple[Verified[Attestation], str]:
    data = (model / model_folder.ATTESTATION).read_bytes()
    found = unchecked(Attestation, data, world.operator)
    return found, canonical_json.sha256(data)


def check_of(world: World, model: Path, **changes: Any) -> ReplayCheck:
    attestation = attested(world, model)[0].document
    fields: dict[str, Any] = {
        "run": RUN,
        "party": "auditor",
        "replayed": REPLAYED,
        "steps": attestation.plan.max_steps,
        "ledger": attestation.ledger.root,
        "environment": ENVIRONMENT,
        "differences": (),
    }
    return ReplayCheck(**fields | changes)


def signed(
    world: World, model: Path, *, signer: LocalSigner | None = None, **changes: Any
) -> bytes:
    return sign_replay_check(
        check_of(world, model, **changes),
        attested(world, model)[0],
        signer or world.keys.auditor,
    )
