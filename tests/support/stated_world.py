"""A deployment whose credentials state every optional field, and whose attestation has what few
have: existing weights, a replay, a removed adapter, a validation result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation, Replay, without_adapter
from govray.governance.attestation.validation_result import ValidationResult
from govray.governance.policy.corpus_description import CorpusDescription, Months
from govray.governance.policy.pii_scan import PiiScan
from govray.governance.verify.verifier import verify
from tests.support.world import AT, DIGEST, World, write

REMOVED = "2026-11-12T00:00:00Z"
HOSTILE = 'none | <img src=x> "[a](javascript:x)"\n# no heading `code`'
URL = "https://data.example/alpha?q=a%20b&x=ü|<y>"


def from_existing_weights(attestation: Attestation) -> Attestation:
    run = attestation.run.model_copy(update={"initial_weights": {"base.safetensors": DIGEST}})
    return attestation.model_copy(update={"run": run})


class Stated(World):
    """Of alpha, everything is stated; of the others, what a World states."""

    def issue(self, corpus: str, **given: Any) -> bytes:
        if corpus != "alpha":
            return super().issue(corpus, **given)
        stated: dict[str, Any] = {
            "description": CorpusDescription(
                source="crawled",
                url=URL,
                collected=Months(first="2024-01", last="2025-05"),
                modality=("text", "code"),
                languages=("en", "de-AT"),
                opt_out_measures=HOSTILE,
                personal_data="none",
            ),
            "normalisation": ("newlines", "nfc"),
            "pii_scan": PiiScan(
                analyzer="presidio-analyzer 2.2.366", entities=("EMAIL_ADDRESS",), score=0.5
            ),
            "sensitivity": "restricted",
        }
        return super().issue(corpus, **stated | given)

    def model(self, folder: Path) -> Path:
        """A model that states all; acme was replayed without and then removed."""
        plain = verify(self.deploy(folder.with_name("plain")), trust_root=self.root, at=AT)
        digests = {each.name: each.sha256 for each in plain.subjects}
        replay = Replay(
            corpus="acme",
            party="world",
            plan=plain.attestation.plan.without("acme").digest,
            files={model_folder.WEIGHTS: digests[model_folder.WEIGHTS]},
            environment=plain.attestation.environment,
        )
        self.deploy(
            folder,
            replays=[replay],
            attestation=from_existing_weights,
            pretrained={"embedding": ["the-web"]},
            validation=ValidationResult(
                metric="loss", goal="min", value=1.5, corpora={"held-out": DIGEST}
            ),
        )
        before = self.verify(folder)
        for file in model_folder.adapter_files("acme"):
            (folder / file).unlink()
        (folder / model_folder.ADAPTERS / "acme").rmdir()
        config = {"entrypoint": "world:Model", "hyperparameters": {"blocks": 2, "name": "tiny"}}
        write(folder / model_folder.CONFIG, json.dumps(config, separators=(",", ":")).encode())
        self.attest(folder, without_adapter(before.attestation, before.routes, "acme", at=REMOVED))
        return folder
