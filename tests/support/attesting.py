"""An attestor over the runs of a deployment."""

from __future__ import annotations

from pathlib import Path

from govray.governance.trust.trust_state import TrustState
from govray.platform.attestor.attestor import Attestor
from govray.platform.attestor.confinement import ParserLimits
from govray.platform.attestor.parser import confined
from govray.platform.attestor.register import Register
from govray.platform.attestor.settings import AttestorSettings
from govray.train.run_folder.clock import instant
from tests.support.deployment import Deployment


def attestor_of(here: Deployment, register: Register, storage: Path, folder: Path) -> Attestor:
    """With the deployment's key and root; its models go below ``folder``."""
    settings = AttestorSettings.model_validate(
        {
            "register": "unused",
            "token_file": "token",
            "storage": str(storage),
            "prepared": str(storage / "prepared"),
            "models": "models",
            "staging": "staging",
            "key": str(here.key),
            "trust_root": str(here.root),
        },
        context={"folder": folder},
    )
    return Attestor(
        settings=settings,
        register=register,
        signer=here.signers["operator"],
        root_digest=TrustState.load(here.root.read_bytes(), at=instant()).digest,
        parser=confined(ParserLimits(memory=2 << 30, seconds=120)),
        clock=instant,
    )
