"""The predicate: built from a run, closed, stable, and honest about its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.errors import Malformed, UsageError
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import (
    DISCLAIMER,
    Replay,
    RunFacts,
    without_adapter,
)
from govray.governance.formats import canonical_json
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.world import AT, FINISHED, World


@pytest.fixture(scope="module")
def verified(world: World, untouched: Path) -> VerifiedModel:
    return verify(untouched, trust_root=world.root, at=AT)


def test_golden_fields(verified: VerifiedModel) -> None:
    """The names that other tools read: changing one is a new predicate type."""
    value = verified.attestation.to_json()
    assert verified.attestation.PREDICATE_TYPE == (
        "https://govray.dev/attestation/provenance-coverage/v1"
    )
    assert sorted(value) == [
        "adapters",
        "assuranceLevel",
        "buffers",
        "corpora",
        "coverage",
        "disclaimer",
        "domains",
        "environment",
        "execution",
        "files",
        "groups",
        "ledger",
        "levels",
        "manifest",
        "plan",
        "policy",
        "pretrained",
        "quarantine",
        "removals",
        "replays",
        "run",
        "taint",
        "trustRoot",
    ]
    assert value["adapters"] == [
        {
            "corpora": ["acme"],
            "name": "acme",
            "rank": 2,
            "tensors": ["acme.lora_A.weight", "acme.lora_B.weight"],
        }
    ]
    assert value["corpora"][3]["route"] == {"weights": {"block.1": 1, "final_norm": 0.3, "head": 1}}
    assert value["domains"] == [
        ["block.0", "block.1", "embedding", "final_norm", "head"],
        ["adapter:acme"],
    ]
    [acme] = [entry for entry in value["coverage"] if entry["corpus"] == "acme"]
    assert sorted(acme) == [
        "corpus",
        "gradientNormShare",
        "group",
        "records",
        "steps",
        "tokens",
        "weightedTokens",
    ]
    assert acme["gradientNormShare"] == 1
    assert all(isinstance(acme[count], str) for count in ("records", "steps", "tokens"))
    assert value["quarantine"] == [
        {"corpus": "delta", "reason": "GPL-3.0-only", "records": 5, "rule": "strong-copyleft"}
    ]


def test_the_disclaimer_is_the_agreed_text() -> None:
    assert canonical_json.sha256(DISCLAIMER.encode()) == (
        "sha256:0b3aec0083b8c36556d0fbdb057e8ec662d3c0508a8f9b3e9319f52f0940aa91"
    )
    for word in ("proves", "guarantees", "compliant", "influence", "unlearned"):
        assert word not in DISCLAIMER


def test_a_run_cannot_finish_before_it_starts() -> None:
    with pytest.raises(Malformed, match="finished before"):
        RunFacts.from_json(
            {"id": "r", "name": "r", "started": FINISHED, "finished": "2026-11-10T08:59:59Z"}
        )


def replay(verified: VerifiedModel, corpus: str, *files: str) -> Replay:
    digests = {s.name: s.sha256 for s in verified.subjects}
    return Replay(
        corpus=corpus,
        party="world",
        plan=verified.attestation.plan.without(corpus).digest,
        files={name: digests[name] for name in files},
        environment=verified.attestation.environment,
    )


def test_levels_rise_with_replay_and_removal(
    world: World, verified: VerifiedModel, tmp_path: Path
) -> None:
    base = verified.attestation.base_groups
    assert verified.attestation.levels["acme"] == dict.fromkeys(base, 1)

    evidence = replay(verified, "acme", model_folder.WEIGHTS)
    folder = world.deploy(tmp_path / "model", replays=[evidence])
    replayed = verify(folder, trust_root=world.root, at=AT)
    assert replayed.attestation.levels["acme"] == dict.fromkeys(base, 2)
    assert replayed.attestation.levels["gamma"] == verified.attestation.levels["gamma"]

    for file in model_folder.adapter_files("acme"):
        (folder / file).unlink()
    after = without_adapter(
        replayed.attestation, replayed.routes, "acme", at="2026-11-11T00:00:00Z"
    )
    world.attest(folder, after)
    removed = verify(folder, trust_root=world.root, at=AT)
    assert removed.attestation.levels["acme"] == dict.fromkeys(base, 3)
    # What trained stays on record.
    assert removed.coverage["acme", "adapter:acme"] == verified.coverage["acme", "adapter:acme"]


def test_only_an_adapter_that_is_there_can_be_removed(verified: VerifiedModel) -> None:
    attestation, routes = verified.attestation, verified.routes
    with pytest.raises(UsageError, match=r"zeta.*It has acme"):
        without_adapter(attestation, routes, "zeta", at=FINISHED)
    once = without_adapter(attestation, routes, "acme", at=FINISHED)
    with pytest.raises(UsageError, match="already removed"):
        without_adapter(once, routes, "acme", at=FINISHED)
