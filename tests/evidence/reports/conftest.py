"""A verified model whose corpora are of all kinds, and statements of its provider."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from govray.evidence.reports.provider_statement import (
    ProviderStatement,
    verify_statement,
)
from govray.governance.formats.dsse import Envelope, sign_payload
from govray.governance.formats.keys import LocalSigner
from govray.governance.policy.corpus_description import CorpusDescription
from govray.governance.verify.verifier import VerifiedModel
from tests.support.world import AT, World

CORPORA = {"acme": (9,), "alpha": (10, 8), "beta": (12,), "gamma": (11,)}

DESCRIBED: dict[str, dict[str, Any]] = {
    "acme": {
        "source": "licensed",
        "content": "Manuals.",
        "modality": ["text"],
        "languages": ["de"],
        "collected": {"first": "2024-01", "last": "2024-12"},
        "optOut": "not_applicable",
        "personalData": "none",
        "illegalContentMeasures": "Read by the publisher.",
    },
    "alpha": {
        "source": "crawled",
        "url": "https://crawl.example/2026",
        "domains": {
            "unit": "records",
            "sizes": {f"d{n:02}.example": 100 - n for n in range(30)},
            "total": 200,
        },
        "content": "News.",
        "modality": ["text"],
        "languages": ["en", "fr"],
        "collected": {"first": "2023-05", "last": "2025-11"},
        "optOut": "honoured",
        "optOutMeasures": "robots.txt was read before each request.",
        "personalData": "present",
        "crawlers": [
            {"name": "examplebot/1", "purpose": "News.", "behaviour": "Obeys robots.txt."}
        ],
        "illegalContentMeasures": "A list of hashes.",
    },
    "beta": {
        "source": "public_dataset",
        "url": "https://data.example/beta",
        "content": "Code.",
        "modality": ["code"],
        "languages": ["en"],
        "collected": {"first": "2022-01", "last": "2022-06"},
        "optOut": "none_found",
        "personalData": "pseudonymised",
        "illegalContentMeasures": "None is known.",
    },
    "gamma": {
        "source": "synthetic",
        "generators": ["model-x 2"],
        "content": "Dialogues.",
        "modality": ["text"],
        "languages": ["en"],
        "collected": {"first": "2025-01", "last": "2025-02"},
        "optOut": "not_applicable",
        "personalData": "none",
        "illegalContentMeasures": "A classifier.",
    },
}


@dataclass(frozen=True)
class Deployed:
    """A model that verifies, and the world that signed it."""

    world: World
    folder: Path

    @property
    def model(self) -> VerifiedModel:
        return self.world.verify(self.folder)

    def statement(self, *, signer: LocalSigner | None = None, **answers: Any) -> bytes:
        """A signed statement about the model, by the operator unless somebody else signs."""
        fields = {
            "name": "example",
            "version": 1,
            "attestation": self.model.digest,
            "issued": "2026-11-19T00:00:00Z",
        }
        document = ProviderStatement(**fields | answers)
        return document.seal([signer or self.world.keys.operator])

    def verified(self, data: bytes) -> Any:
        model = self.model
        return verify_statement(model.trust_root, data, attestation=model.digest, at=AT)


def deploy(folder: Path, described: dict[str, dict[str, Any]]) -> Deployed:
    """A model of the world's four corpora, those in ``described`` with a description."""
    world = World(corpora=CORPORA)
    credentials = {
        corpus: world.issue(corpus, description=CorpusDescription.from_json(fields))
        for corpus, fields in described.items()
    }
    world.deploy(folder, credentials=credentials)
    return Deployed(world, folder)


@pytest.fixture(scope="session")
def described(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """Every corpus says how it came to be. Tests only read it."""
    return deploy(tmp_path_factory.mktemp("described") / "model", DESCRIBED)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """No corpus does. Tests only read it."""
    return deploy(tmp_path_factory.mktemp("plain") / "model", {})


def resigned(data: bytes, signer: LocalSigner) -> bytes:
    """The same payload, signed by somebody else alone."""
    envelope = Envelope.parse(data)
    return sign_payload(envelope.payload, [signer])
