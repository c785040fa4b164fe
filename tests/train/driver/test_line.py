"""What a model says alone, a script that is governed, and what a run refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import ray.train

import govray
from govray.errors import Refused, UsageError, VerificationFailed
from govray.governance.attestation import model_folder
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.run_folder import events
from tests.support import loops
from tests.support.deployment import POLICY, Deployment, targets_of
from tests.support.flipped import flip
from tests.support.solo import run_here


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)


def test_the_model_verifies_alone_and_says_what_the_ledger_says(
    alone: Path, deployment: Deployment, tmp_path: Path
) -> None:
    model = shutil.copytree(alone / "model", tmp_path / "elsewhere")
    verified = govray.verify(model, trust_root=deployment.root)
    table = verified.coverage
    # 12 steps of 4, 2 and 1 rows of 32 loss targets.
    assert table["permissive", "embedding"].tokens in targets_of(12 * 4, 32, corpora=2)
    assert table["copyleft_limited", "embedding"].tokens == 0
    assert table["copyleft_limited", "embedding"].indirect
    assert table["copyleft_limited", "block.1"].tokens in targets_of(12 * 2, 32)
    assert table["acme", "adapter:acme"].tokens in targets_of(12 * 1, 32)
    assert table["acme", "embedding"].tokens == 0
    assert not table["acme", "embedding"].indirect
    assert [entry.corpus for entry in verified.attestation.quarantine] == ["mystery"]
    flip(model / model_folder.WEIGHTS)
    with pytest.raises(VerificationFailed, match=model_folder.WEIGHTS):
        govray.verify(model, trust_root=deployment.root)


def test_an_existing_script_is_governed_in_a_few_lines(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOVRAY_KEY", str(deployment.key))
    value = {
        "name": "script",
        "max_steps": 3,
        "hyperparameters": {"context": 32},
        "data": {
            "corpora": str(deployment.corpora),
            "rows_per_step": {"everything": 2, "upper_half": 1, "removable": 1},
        },
        "governance": {
            "policy": str(deployment.policy),
            "trust_root": str(deployment.root),
            "max_quarantined": 0.5,
        },
    }
    trainer = GovernedTrainer(
        parse_experiment(value, where="test"),
        train_loop_per_worker=loops.script,
        train_loop_config={"model": {"blocks": 2, "width": 32}, "lr": 3e-3},
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=ray.train.RunConfig(storage_path=str(tmp_path)),
    )
    run = Path(str(trainer.train(attest=True)))
    verified = govray.verify(run / "model", trust_root=deployment.root)
    assert verified.coverage["copyleft_limited", "block.0"].tokens == 0
    assert verified.coverage["copyleft_limited", "block.0"].indirect
    reported = [e for e in events.read(run) if isinstance(e, events.Reported)]
    assert [e.step for e in reported if e.group == "training"] == [0, 1, 2]
    own = [e.values for e in reported if e.group != "training"]
    assert own, "what the script itself measured is kept"
    assert all(values == {"loss": 1.5} for values in own)


def _policy(deployment: Deployment, old: str, new: str) -> dict[str, Any]:
    """Governance section with the test's policy, one thing changed, signed anew."""
    changed = deployment.sign_policy(POLICY.replace(old, new))
    return {
        "governance": {
            "policy": str(changed),
            "trust_root": str(deployment.root),
            "max_quarantined": 0.5,
        }
    }


def test_a_policy_that_names_a_layer_the_model_lacks_is_refused(deployment: Deployment) -> None:
    changes = _policy(deployment, "final_norm, head]", "final_norm, heads]")
    with pytest.raises(Refused, match="heads"):
        deployment.trainer(**changes).train()


def test_a_profile_without_quota_is_refused_before_training(deployment: Deployment) -> None:
    data = {"corpora": str(deployment.corpora), "rows_per_step": {"everything": 4}}
    with pytest.raises(UsageError, match="no quota"):
        deployment.trainer(data=data).train()


def test_a_key_that_is_no_operators_is_refused_before_training(
    deployment: Deployment, tmp_path: Path
) -> None:
    key = tmp_path / "issuer.pem"
    key.write_bytes(deployment.signers["issuer"].to_pem())
    key.chmod(0o600)
    with pytest.raises(Refused, match="no operator"):
        deployment.trainer(attestation_key=str(key)).fit()
