"""The whole line on a real cluster: train, attest, verify, replay, resume, refuse."""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import ray.train
import yaml

import govray
from govray.checkpoint import commit_folder
from govray.errors import GovrayError, Refused, UsageError, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.attestation.environment import SETUP, Setup
from govray.governance.formats import canonical_json
from govray.governance.submission.code_archive import open_archive
from govray.train import GovernedTrainer
from govray.train.attest.write_model import write_model
from govray.train.driver import submit as submitting
from govray.train.driver.job_environment import runtime_env
from govray.train.driver.trainer import from_experiment
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import parse_experiment, read_experiment
from govray.train.inputs.run_record import read_record
from govray.train.replay.replay_outcome import evidence
from govray.train.replay.replayed_run import replay
from govray.train.run_folder import events
from govray.train.state import snapshot
from tests.support import loops
from tests.support.deployment import POLICY, Deployment, targets_of
from tests.support.leaves import leaf
from tests.support.tree import ROOT

pytestmark = pytest.mark.usefixtures("cluster")


def weights(run: Path) -> str:
    found = snapshot.latest(run)
    assert found is not None
    return hashlib.sha256(commit_folder.load(found[0]).files[model_folder.WEIGHTS]).hexdigest()


def trainer_of(deployment: Deployment, **changes: Any) -> GovernedTrainer:
    return from_experiment(parse_experiment(deployment.experiment(**changes), where="test"))


def test_the_model_verifies_alone_and_says_what_the_ledger_says(
    finished: Path, deployment: Deployment, tmp_path: Path
) -> None:
    model = shutil.copytree(finished / "model", tmp_path / "elsewhere")
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
    data = bytearray((model / model_folder.WEIGHTS).read_bytes())
    data[-1] ^= 1
    (model / model_folder.WEIGHTS).write_bytes(data)
    with pytest.raises(VerificationFailed, match=model_folder.WEIGHTS):
        govray.verify(model, trust_root=deployment.root)


def test_a_replay_without_the_removable_corpus_is_identical(
    finished: Path, deployment: Deployment
) -> None:
    signer = deployment.signers["operator"]
    outcome = replay(finished, without="acme", signer=signer)
    assert outcome.identical
    assert outcome.whole
    found = evidence(finished, at=datetime.now(UTC))
    model = write_model(finished, signer, [each.replay for each in found])
    verified = govray.verify(model, trust_root=deployment.root)
    assert set(verified.attestation.levels["acme"].values()) == {2}


def test_a_replay_without_a_trunk_corpus_names_the_first_tensor_that_differs(
    finished: Path, deployment: Deployment
) -> None:
    """The negative control: leaving out what did train the base must change it."""
    signer = deployment.signers["operator"]
    outcome = replay(finished, without="weak-one", signer=signer)
    assert not outcome.identical
    assert outcome.leaf is None
    assert outcome.tensor is not None
    assert outcome.tensor.file == model_folder.WEIGHTS
    assert outcome.tensor.max_abs
    found = evidence(finished, at=datetime.now(UTC))
    assert [each.replay.corpus for each in found] in (["acme"], [])


@pytest.mark.story
def test_rows_that_come_through_ray_data_train_the_same_bytes(
    finished: Path, deployment: Deployment
) -> None:
    far = replace(
        trainer_of(deployment),
        reader="ray_data",
        run_config=ray.train.RunConfig(
            name="through-ray-data", storage_path=str(deployment.folder / "runs")
        ),
    )
    assert weights(far.train()) == weights(finished)


def test_an_existing_script_is_governed_in_a_few_lines(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOVRAY_KEY", str(deployment.key))
    trainer = GovernedTrainer(
        corpora=deployment.corpora,
        policy=deployment.policy,
        trust_root=deployment.root,
        max_steps=3,
        context=32,
        rows_per_step={"everything": 2, "upper_half": 1, "removable": 1},
        max_quarantined=0.5,
        train_loop_per_worker=loops.script,
        train_loop_config={"model": {"blocks": 2, "width": 32}, "lr": 3e-3},
        scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=ray.train.RunConfig(storage_path=str(tmp_path)),
    )
    result = trainer.fit()
    verified = govray.verify(f"{result.path}/model", trust_root=deployment.root)
    assert verified.coverage["copyleft_limited", "block.0"].tokens == 0
    assert verified.coverage["copyleft_limited", "block.0"].indirect
    reported = [e for e in events.read(Path(result.path)) if isinstance(e, events.Reported)]
    assert reported, "what the script itself measured is kept"
    assert {(e.group, *e.values.items()) for e in reported} == {("validation", ("loss", 1.5))}


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
        trainer_of(deployment, **changes).train()


def test_a_profile_without_quota_is_refused_before_training(deployment: Deployment) -> None:
    data = {"corpora": str(deployment.corpora), "rows_per_step": {"everything": 4}}
    with pytest.raises(UsageError, match="no quota"):
        trainer_of(deployment, data=data).train()


def test_too_large_a_quarantine_is_refused(deployment: Deployment) -> None:
    governance = {
        "policy": str(deployment.policy),
        "trust_root": str(deployment.root),
        "max_quarantined": 0.1,
    }
    with pytest.raises(Refused, match="quarantined"):
        trainer_of(deployment, governance=governance).train()


def test_a_key_that_is_no_operators_is_refused_before_training(
    deployment: Deployment, tmp_path: Path
) -> None:
    key = tmp_path / "issuer.pem"
    key.write_bytes(deployment.signers["issuer"].to_pem())
    key.chmod(0o600)
    with pytest.raises(Refused, match="no operator"):
        trainer_of(deployment, attestation_key=str(key)).train()


def test_a_changed_shard_is_refused_once_and_names_rank_and_file(tmp_path: Path) -> None:
    broken = Deployment(tmp_path / "broken")
    trainer = trainer_of(broken, max_restarts=3)
    prepared = trainer.prepare().folder
    for shard in prepared.glob("class=*/*.parquet"):
        data = bytearray(shard.read_bytes())
        data[len(data) // 3] ^= 1
        shard.write_bytes(bytes(data))
    with pytest.raises(Refused) as caught:
        trainer.train()
    assert "rank" in str(caught.value)
    assert ".parquet" in str(caught.value)
    [run] = run_listing.list_runs(broken.folder / "runs")
    assert run_listing.inspect(run).attempts == 1
    assert run_listing.inspect(run).state == "failed"


def test_a_record_that_says_otherwise_stops_every_rank(deployment: Deployment) -> None:
    """Only rank 0 holds the record; rank 1 must hear of it and not wait for ever."""
    run = deployment.folder / "runs" / "other-history"
    run.mkdir(parents=True)
    (run / "ledger.ahead.jsonl").write_bytes(leaf(0).line + b"\n")
    trainer = replace(
        trainer_of(deployment),
        run_config=ray.train.RunConfig(
            name="other-history", storage_path=str(deployment.folder / "runs")
        ),
    )
    with pytest.raises(GovrayError, match="step 0 does not repeat"):
        trainer.train()


@pytest.mark.story
@pytest.mark.timeout(900)
def test_the_job_entry_point_runs_under_ray_job_submit(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With variables of its own, which its workers see too, and its own code archived."""
    from ray.job_submission import JobStatus, JobSubmissionClient

    def with_setup(*given: Any) -> dict[str, Any]:
        """As if requirements had been installed, for which there may be no network here."""
        asked = runtime_env(*given)
        asked["env_vars"][SETUP] = canonical_json.encode(setup.to_json()).decode()
        return asked

    setup = Setup(pip=f"sha256:{'2' * 64}")
    monkeypatch.setattr(submitting, "runtime_env", with_setup)

    work = tmp_path / "deployment"
    shutil.copytree(ROOT / "jobs", work / "jobs")
    config = work / "jobs" / "tiny.yaml"
    one = {"num_workers": 1, "cpus_per_worker": 0.5}
    environment = {"env_vars": {"MKL_CBWR": "COMPATIBLE"}, "working_dir": str(work)}
    value = deployment.experiment(max_steps=2, resources=one, environment=environment)
    config.write_text(yaml.safe_dump(value))
    address = f"http://{ray._private.worker.get_dashboard_url()}"
    deadline = datetime.now(UTC) + timedelta(seconds=480)
    while True:
        try:
            submitted = submitting.submit(address, config, experiment=read_experiment(config))
            break
        except UsageError as error:  # the cluster has just begun
            if "No available agent" not in str(error) or datetime.now(UTC) > deadline:
                raise
            time.sleep(1)
    job = submitted.id
    client = JobSubmissionClient(address)
    while datetime.now(UTC) < deadline:
        status = client.get_job_status(job)
        if status.is_terminal():
            break
        time.sleep(0.5)
    logs = client.get_job_logs(job)
    assert status == JobStatus.SUCCEEDED, logs
    model = next(line.split()[1] for line in logs.splitlines() if line.startswith("model "))
    attested = govray.verify(model, trust_root=deployment.root).attestation
    assert attested.environment.settings["env.MKL_CBWR"] == "COMPATIBLE"
    assert attested.environment.setup == setup
    assert attested.run.archive == submitted.archive == read_record(Path(model).parent).archive
    assert submitted.archive is not None
    code = open_archive(deployment.folder / "runs", submitted.archive, tmp_path / "code")
    assert (code / "jobs" / "tiny.yaml").read_text() == config.read_text()
