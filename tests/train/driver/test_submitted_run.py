"""A submission is one run, whatever happens to its job: in this process, one rank, no Ray."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.train import RunConfig

from govray import cli
from govray.errors import CouldNotCheck, Refused, Stopped
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.submission.code_archive import archive_folder
from govray.governance.submission.submission import Submission
from govray.governance.verify.verifier import verify
from govray.train.checkpoint.commit_folder import open_commit
from govray.train.checkpoint.storage import latest
from govray.train.driver.trainer import GovernedTrainer, new_or_unfinished
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.replay.replayed_run import replay
from govray.train.run_folder import stop_request
from govray.train.run_folder.clock import instant
from govray.train.run_folder.run_lock import Driven
from tests.support.deployment import Deployment
from tests.support.tree import ROOT

DIGEST = f"sha256:{'1' * 64}"
ONE = Submission(
    id="s-1", user="ada", project="search", submitted="2026-11-24T20:30:49Z", archive=DIGEST
)
TWO = ONE.model_copy(update={"id": "s-2"})


def job(here: Deployment, submission: Submission | None, **more: Any) -> GovernedTrainer:
    experiment = parse_experiment(here.experiment(max_steps=4), where="test")
    return new_or_unfinished(experiment, submission=submission, **more)


def stopped(here: Deployment, submission: Submission | None) -> Path:
    """The run of a job that was stopped after its first steps."""
    runs = here.folder / "runs"
    before = {*run_listing.list_runs(runs)}

    def on_step(step: int, metrics: Any) -> None:
        for each in {*run_listing.list_runs(runs)} - before:
            stop_request.request(each, "a test")

    with pytest.raises(Stopped):
        job(here, submission, on_step=on_step).train()
    [run] = {*run_listing.list_runs(runs)} - before
    assert isinstance(run, Path)
    return run


def test_a_run_says_who_submitted_it(
    here: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = job(here, ONE).train(attest=True)
    assert run.name == "tiny-s-1"
    record = read_record(run)
    assert (record.submission, record.code_archive, record.archive) == (ONE, DIGEST, None)
    attestation = verify(run / "model", trust_root=here.root, at=instant()).attestation
    stated = attestation.execution
    assert (stated.submission, stated.user, stated.project) == (ONE.id, ONE.user, ONE.project)
    assert (stated.submitted, stated.policy) == (ONE.submitted, ONE.policy)
    assert (stated.code.origin, stated.code.archive) == ("submitted", DIGEST)
    found = latest(run)
    assert found is not None
    assert stated.commit == open_commit(found[0]).digest
    assert stated.registered == attestation.run.started <= stated.attested
    root = ["--trust-root", str(here.root)]
    assert cli.main(["verify", str(run / "model"), *root]) == 0
    assert "submitted by ada, project search, as the operator states" in capsys.readouterr().out
    assert cli.main(["show", str(run / "model")]) == 0
    assert "submitted by ada, project search" in capsys.readouterr().out
    assert cli.main(["runs", "show", str(run)]) == 0
    assert "submitted by ada, project search" in capsys.readouterr().out
    # The control: another user's name is not what was signed.
    envelope = run / "model" / model_folder.ATTESTATION
    signed = Envelope.parse(envelope.read_bytes())
    changed = replace(signed, payload=signed.payload.replace(b'"user":"ada"', b'"user":"eve"'))
    assert changed.payload != signed.payload
    envelope.write_bytes(changed.encode())
    assert cli.main(["verify", str(run / "model"), *root]) == 1


def test_a_run_goes_on_for_its_own_submission_alone(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, byhand = stopped(here, ONE), stopped(here, None)
    other_user = ONE.model_copy(update={"user": "eve"})
    for folder, submission, why in (
        (run, TWO, "begun by submission s-1, and this job is of submission s-2"),
        (run, None, "begun by submission s-1, and this job is of no submission"),
        (run, other_user, "submission s-1 is stated otherwise"),
        (byhand, ONE, "begun by hand, and this job is of submission s-1"),
    ):
        trainer = replace(job(here, submission), resume=folder)
        with pytest.raises(Refused, match=why):
            trainer.train()
    assert run_listing.inspect(run).state == "stopped"
    monkeypatch.setattr(run_listing, "refuse_other_submission", lambda *given: None)
    assert replace(job(here, TWO), resume=run).train() == run  # the control


def test_a_job_that_is_started_once_more_changes_nothing(here: Deployment) -> None:
    run = job(here, ONE).train(attest=True)
    signed = (run / "model" / model_folder.ATTESTATION).read_bytes()
    assert job(here, ONE).train(attest=True) == run
    assert (run / "model" / model_folder.ATTESTATION).read_bytes() == signed
    assert run_listing.list_runs(run.parent) == [run]
    # The control: whoever starts by hand means another run.
    byhand = job(here, None).train()
    assert job(here, None).resume == byhand
    (byhand / "model").mkdir()
    assert job(here, None).resume is None


def test_of_two_jobs_at_once_one_begins(here: Deployment) -> None:
    late = job(here, ONE)
    assert late.resume is None
    run = stopped(here, ONE)
    before = (run / "record" / "run.json").read_bytes()
    with pytest.raises(Driven, match="another job has begun the run meanwhile"):
        late.train()
    assert (run / "record" / "run.json").read_bytes() == before
    # The control: by another name it would have been a second run of the submission.
    storage = str(late.storage_place)
    other = replace(late, run_config=RunConfig(name="other", storage_path=storage))
    assert other.train().name == "other"


def test_another_policy_is_refused_before_anything_is_prepared(here: Deployment) -> None:
    policy = canonical_json.sha256(Envelope.parse(here.policy.read_bytes()).payload)
    under = ONE.model_copy(update={"policy": DIGEST})
    for call in (GovernedTrainer.train, GovernedTrainer.prepare):
        with pytest.raises(Refused, match=f"under the policy {DIGEST}, and reads {policy}"):
            call(job(here, under))
    assert not (here.folder / "runs").exists()
    right = job(here, ONE.model_copy(update={"policy": policy}))
    assert right.prepare().folder.is_dir()  # the control


def test_an_unsigned_job_holds_no_key(
    here: Deployment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, file = tmp_path / "tiny.yaml", tmp_path / "submission.json"
    config.write_text(yaml.safe_dump(here.experiment(max_steps=2)))
    file.write_bytes(canonical_json.encode(ONE.to_json()))
    monkeypatch.setattr("govray.train.driver.ray_cluster.start_ray", lambda **_: None)
    words = ["train.py", "--config", str(config), "--submission", str(file)]
    pem = here.key.read_text()

    def ended(*more: str) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", [*words, *more])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / "jobs" / "train.py"), run_name="__main__")
        shown = capsys.readouterr()
        return end.value.code, shown.out + shown.err

    code, said = ended("--unsigned")  # though the key is here
    assert (code, "Run `govray prepare EXPERIMENT`" in said) == (2, True), said
    assert cli.main(["prepare", str(config), "--key", str(here.key)]) == 0
    here.key.unlink()
    monkeypatch.setenv("GOVRAY_KEY", pem)
    code, said = ended("--unsigned")
    assert (code, "GOVRAY_KEY holds the operator's key" in said) == (1, True), said
    monkeypatch.delenv("GOVRAY_KEY")
    run = here.folder / "runs" / "tiny-s-1"
    for _ in range(2):  # started once more, its job ends as it did
        code, said = ended("--unsigned")
        assert (code, said.splitlines()[-1]) == (
            0,
            f"run    {run}  trained; the attestor signs its model",
        )
        assert not (run / "model").exists()
    code, said = ended()  # the control: this job signs
    assert (code, "cannot read the private key" in said) == (2, True), said
    here.key.write_text(pem)
    here.key.chmod(0o600)
    code, said = ended()
    assert (code, f"model  {run}/model" in said) == (0, True), said
    assert verify(run / "model", trust_root=here.root, at=instant())


def test_a_runs_code_is_unpacked_and_a_replay_says_where_it_is(
    here: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    (work / "jobs").mkdir(parents=True)
    (work / "jobs" / "train.py").write_text("print('hello')\n")
    digest = archive_folder(work, here.folder / "runs")
    run = job(here, ONE.model_copy(update={"archive": digest})).train(attest=True)
    out = tmp_path / "out"
    assert cli.main(["runs", "code", str(run), str(out)]) == 0
    assert (out / "jobs" / "train.py").read_text() == "print('hello')\n"
    again = run / "replays" / replay(run).run
    assert read_record(again).submission is None  # nobody submitted the replay
    record = read_record(run)
    assert record.environment.source is not None
    changed = record.environment.source.model_copy(update={"digest": DIGEST})
    environment = record.environment.model_copy(update={"source": changed})
    replace(record, environment=environment).write(run)
    capsys.readouterr()
    with pytest.raises(CouldNotCheck, match=rf"source\.digest.*{digest}: `govray runs code {run}"):
        replay(run)
    replace(record, environment=environment, submission=None).write(run)
    with pytest.raises(CouldNotCheck) as plain:  # the control
        replay(run)
    assert "govray runs code" not in str(plain.value)
    assert cli.main(["runs", "code", str(run), str(tmp_path / "more")]) == 3
    assert "recorded no archive" in capsys.readouterr().err
