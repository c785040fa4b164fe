"""Prepared data: signed by any operator of the trust root, used by runs that have no key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from govray import cli
from govray.data.admission import Prepared
from govray.errors import GovrayError, Refused, Stopped, Untrusted, UsageError
from govray.governance.formats.document import format_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.record.prepare_manifest import MANIFEST_FILE
from govray.governance.trust.authority import TrustRoot
from govray.governance.verify.verifier import verify
from govray.train.attest.write_model import write_model
from govray.train.driver import preparation
from govray.train.driver.trainer import GovernedTrainer, new_or_unfinished
from govray.train.inputs import operator_key, run_listing
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.run_folder import stop_request
from govray.train.run_folder.clock import instant
from tests.support.beaconed import beacon_of
from tests.support.deployment import Deployment
from tests.support.held_out import hold_out, judged_trainer
from tests.support.solo import run_here
from tests.support.tree import ROOT


class TwoKeys(Deployment):
    """A deployment whose operator has two keys, either of which is enough."""

    def _root(self) -> TrustRoot:
        self.signers["second"] = LocalSigner.generate()
        return self.root_of("operator", "second")

    def root_of(self, *names: str, version: int = 1) -> TrustRoot:
        """The root whose operator has these keys."""
        keys = tuple(self.signers[name].public_key for name in names)
        root = super()._root()
        changed = tuple(
            each.model_copy(update={"keys": keys}) if each.role == "operator" else each
            for each in root.authorities
        )
        return root.model_copy(update={"authorities": changed, "version": version})

    def key_of(self, name: str) -> str:
        path = self.folder / f"{name}.pem"
        path.write_bytes(self.signers[name].to_pem())
        path.chmod(0o600)
        return str(path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoKeys:
    run_here(monkeypatch)
    return TwoKeys(tmp_path / "here")


def trainer(here: Deployment, **changes: Any) -> GovernedTrainer:
    value = here.experiment(max_steps=2) | changes
    return GovernedTrainer(parse_experiment(value, where="test"))


def signed_by(prepared: Prepared, here: Deployment) -> list[str]:
    envelope = Envelope.parse(prepared.envelope)
    return [name for name, each in here.signers.items() if envelope.signed_by([each.public_key])]


def test_what_one_operator_prepared_another_uses(here: TwoKeys) -> None:
    first = trainer(here).prepare()
    second = trainer(here, attestation_key=here.key_of("second")).prepare()
    assert (second.folder, second.envelope) == (first.folder, first.envelope)
    assert signed_by(second, here) == ["operator"]
    assert [each.name for each in first.folder.parent.iterdir()] == [first.folder.name]


def test_what_no_operator_signed_is_refused(here: TwoKeys) -> None:
    prepared = trainer(here).prepare()
    manifest = prepared.folder / MANIFEST_FILE
    signed = Envelope.parse(manifest.read_bytes())
    for name in ("auditor", "second"):
        other = replace(signed, signatures=()).cosign([here.signers[name]])
        manifest.write_bytes(other)
        if name == "second":  # the control
            assert trainer(here).prepare().digest == prepared.digest
            continue
        with pytest.raises(Untrusted, match="no signature verifies under any operator") as told:
            trainer(here).train()
        assert str(manifest) in str(told.value)


def test_a_former_keys_folder_is_in_nobodys_way(here: TwoKeys) -> None:
    first = trainer(here).prepare()
    here.root.write_bytes(here.root_of("second", version=2).seal([here.signers["root"]]))
    rotated = trainer(here, attestation_key=here.key_of("second")).prepare()
    assert rotated.folder != first.folder
    assert first.folder.is_dir()


def test_a_run_of_prepared_data_needs_no_key(here: TwoKeys) -> None:
    prepared = trainer(here).prepare()
    here.key.unlink()
    run = trainer(here).train()
    assert read_record(run).manifest == prepared.envelope
    assert not (run / "model").exists()
    with pytest.raises(UsageError, match="private key"):  # the control: this one signs
        trainer(here).train(attest=True)


@pytest.mark.parametrize("judged", [False, True], ids=["training", "validation"])
def test_without_a_key_nothing_is_prepared(
    here: TwoKeys, monkeypatch: pytest.MonkeyPatch, judged: bool
) -> None:
    """Where a run says that it has none, nobody looks for the key that lies there."""
    hold_out(here)
    if judged:
        judged_trainer(here, None).prepare()
    judging = {} if judged else None
    run = judged_trainer(here, judging, max_steps=2)
    folder = here.folder / "runs" / "prepared"
    before = sorted(folder.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(operator_key, "load", lambda *given, **more: pytest.fail("it was loaded"))
        for call in (GovernedTrainer.train, GovernedTrainer.prepare):
            with pytest.raises(UsageError, match="not prepared, and nothing can sign") as told:
                call(replace(run, unsigned=True))
            assert str(folder) in str(told.value)
            assert "govray prepare EXPERIMENT" in str(told.value)
        assert sorted(folder.rglob("*")) == before
    with pytest.raises(UsageError, match=r"NOT_SET is not set\. Run `govray prepare"):
        judged_trainer(here, judging, max_steps=2, attestation_key="env:NOT_SET").train()
    run.prepare()  # the control
    assert len([*folder.iterdir()]) == 1 + judged
    assert replace(run, unsigned=True).train()
    with pytest.raises(UsageError, match="do without a key"):
        replace(run, unsigned=True).train(attest=True)


def test_a_key_of_no_operator_prepares_nothing(here: TwoKeys) -> None:
    with pytest.raises(Untrusted, match="belongs to no operator"):
        trainer(here, attestation_key=here.key_of("auditor")).prepare()
    assert not (here.folder / "runs" / "prepared").exists()


def test_the_source_of_a_policy_is_not_taken_for_a_signed_one(
    here: TwoKeys, tmp_path: Path
) -> None:
    (source := tmp_path / "policy.yaml").write_text("name: licences\n")
    governance = here.experiment()["governance"] | {"policy": str(source)}  # type: ignore[operator]
    with pytest.raises(UsageError, match="Sign it with `govray sign"):
        trainer(here, governance=governance).prepare()


def test_the_command_prepares_what_runs_and_trials_find(
    here: TwoKeys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "search.yaml"
    judged = {"corpora": str(hold_out(here)), "every_steps": 2}
    value = here.experiment(validation=judged, checkpoint={"every_steps": 2}, max_steps=2)
    # A program of the file's author is none of the operator's.
    planted = tmp_path / "planted"
    value["attestation_key"] = f"command:touch {planted}"
    config.write_text(yaml.safe_dump(value | {"search": {"of": "no interest here"}}))
    assert cli.main(["prepare", str(config), "--key", here.key_of("auditor")]) == 1
    assert "belongs to no operator" in capsys.readouterr().err
    for _ in range(2):  # the second time they are there
        assert cli.main(["prepare", str(config), "--key", str(here.key), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert cli.main(["prepare", str(config), "--key", here.key_of("second")]) == 0
        assert f"manifest   {told['validation']['manifest']}" in capsys.readouterr().out
    assert not planted.exists()
    unsigned = GovernedTrainer(parse_experiment(value, where="test"), unsigned=True)
    shared = unsigned.share(instant())
    assert shared.validation is not None
    for name, each in (("training", shared.prepared), ("validation", shared.validation.prepared)):
        assert told[name] == {"folder": str(each.folder), "manifest": each.digest}
        assert signed_by(each, here) == ["operator"]
    assert unsigned.train()


WATCHED = """
memorization:
  every: 4
  probe_rows: 16
  odds: 1.5
  fdr: 0.05
  actions: {open: ACTION}
"""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows_per_step": {"everything": 2, "upper_half": 1}}, "'removable' is in use but has no"),
        ({"rows_per_step": {"everything": 2, "upper": 1}}, "the policy has no profile 'upper'"),
        ({"exclude": ["open-tow"]}, "no admitted corpus is called 'open-tow'"),
        ({"mixture": {"mystery": 2}}, "no admitted corpus is called 'mystery'"),
    ],
)
def test_what_no_run_would_take_is_refused_before_hours_of_packing(
    here: TwoKeys, change: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = here.experiment(max_steps=2)
    experiment = parse_experiment(value | {"data": {**value["data"], **change}}, where="test")  # type: ignore[dict-item]
    unsigned = GovernedTrainer(experiment)
    with pytest.raises(GovrayError) as late:
        unsigned.train()
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "prepare", lambda *_, **__: pytest.fail("it packs first"))
        with pytest.raises(GovrayError, match=told) as early:
            preparation.prepare_experiment(experiment, here.signers["operator"])
    assert str(early.value) == str(late.value)


@pytest.mark.parametrize("action", ["flag", "{action: gate, fallback: nothing}"])
def test_a_corpus_that_can_never_give_evidence_is_refused_where_it_is_prepared(
    here: TwoKeys, action: str
) -> None:
    text = here.policy_text + WATCHED.replace("ACTION", action)
    value = here.experiment(max_steps=2)
    value["governance"]["policy"] = str(here.sign_policy(text))  # type: ignore[index]
    experiment = parse_experiment(value, where="test")
    if action == "flag":  # the control
        assert preparation.prepare_experiment(experiment, here.signers["operator"])
        return
    with pytest.raises(Refused, match="'open-one' is to be watched") as early:
        preparation.prepare_experiment(experiment, here.signers["operator"])
    with pytest.raises(Refused) as late:
        GovernedTrainer(experiment, unsigned=True).train()
    assert str(early.value) == str(late.value)


class Belled(TwoKeys):
    """Its trust root names a beacon, which rings every hour."""

    def _root(self) -> TrustRoot:
        self.signers["bell"] = LocalSigner.generate()
        self.genesis = self.at - timedelta(days=1)
        beacon = beacon_of(
            self.signers["bell"], genesis=format_time(self.genesis), period=3600, delay=3600
        )
        return super()._root().model_copy(update={"beacon": beacon})


def test_the_command_prepares_by_the_pulse_of_a_beacon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_here(monkeypatch)
    now = instant()
    here = Belled(tmp_path / "here", at=now, issued=now - timedelta(hours=5))
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(here.experiment(max_steps=2)))
    asked = ["prepare", str(config), "--key", str(here.key)]
    # Four hours ago the credentials came, and the pulse was awaited.
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "instant", lambda: now - timedelta(hours=4))
        assert cli.main(asked) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "the reserve waits for beacon bell, round 22" in told
    assert "govray prepare EXPERIMENT --pulse FILE" in told
    # The beacon signs its round by the command that signs everything.
    (tmp_path / "pulse.yaml").write_text("schema: govray.dev/pulse/v1\nbeacon: bell\nround: 22\n")
    sign = ["sign", str(tmp_path / "pulse.yaml"), "--key", here.key_of("bell")]
    assert cli.main(sign) == 0
    # A run that finds no data says what is missing, and prepares none by a draw of its own.
    with pytest.raises(Refused, match="the reserve waits for"):
        trainer(here).prepare()
    assert cli.main([*asked, "--pulse", str(tmp_path / "pulse.dsse.json")]) == 0
    model = trainer(here).train(attest=True) / "model"
    capsys.readouterr()
    assert cli.main(["verify", str(model), "--trust-root", str(here.root)]) == 0
    assert "reserve    a share of 0.02, by beacon bell, round 22" in capsys.readouterr().out


PREPARE = """
import sys
from govray.governance.signers.key_reference import open_signer
from govray.train.driver.preparation import prepare_experiment, read_data_of
prepare_experiment(read_data_of(sys.argv[1]), open_signer(sys.argv[2]))
print({"torch", "theirs"} & {*sys.modules})
"""


@pytest.mark.slow
def test_nothing_that_an_experiment_names_is_imported(
    here: TwoKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text("open('planted', 'w').close()\n")
    value = here.experiment(
        entrypoint="theirs:Model",
        optimizer={"name": "theirs.Optimizer", "lr": 0.1},
        schedule={"name": "theirs.schedule"},
    )
    config = tmp_path / "theirs.yaml"
    config.write_text(yaml.safe_dump(value))
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(config), str(here.key)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
    assert not (tmp_path / "planted").exists()
    assert len([*(here.folder / "runs" / "prepared").iterdir()]) == 1
    with monkeypatch.context() as patch:  # the control
        patch.chdir(tmp_path)
        patch.syspath_prepend(tmp_path)
        with pytest.raises(GovrayError):
            GovernedTrainer(parse_experiment(value, where="test"))
    assert (tmp_path / "planted").exists()


NOBODY = 65534


@contextmanager
def read_only(folder: Path, *, others: Path) -> Iterator[None]:
    """Nobody may write below ``folder``, this process included; it may in ``others``."""
    root = os.geteuid() == 0
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    if root:
        os.chown(others, NOBODY, -1)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)


def test_a_run_writes_nothing_where_its_data_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another account than the one that prepared them trains; it can read no key either."""
    run_here(monkeypatch)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # unlike what pytest makes
        here = TwoKeys(Path(folder) / "here")
        hold_out(here)
        run = judged_trainer(here, {}, max_steps=2)
        run.train()  # what is imported late is imported now
        runs = here.folder / "runs"
        # A run's folder of its own, since names are drawn for each trainer.
        unsigned = judged_trainer(here, {}, max_steps=2)
        data = {**here.experiment()["data"], "reserve": 0.5}  # type: ignore[dict-item]
        other = judged_trainer(here, {}, max_steps=2, data=data)
        with read_only(runs / "prepared", others=runs):
            with pytest.raises(OSError, match="Permission denied"):
                (runs / "prepared" / "new").touch()
            trained = replace(unsigned, unsigned=True).train()
            with pytest.raises(UsageError, match="private key"):  # the control
                other.train()
        assert isinstance(trained, Path)
        write_model(trained, LocalSigner.from_pem(here.key.read_bytes()))
        verify(trained / "model", trust_root=here.root, at=instant())


def test_a_run_goes_on_under_another_key_of_its_operator(
    here: TwoKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOVRAY_KEY", str(here.key))
    value = here.experiment(max_steps=4, attestation_key="env:GOVRAY_KEY")
    experiment = parse_experiment(value, where="test")
    runs = here.folder / "runs"

    def stop(step: int, metrics: Any) -> None:
        [run] = run_listing.list_runs(runs)
        stop_request.request(run, "a test")

    with pytest.raises(Stopped):
        new_or_unfinished(experiment, on_step=stop).train(attest=True)
    monkeypatch.setenv("GOVRAY_KEY", here.key_of("second"))
    other = new_or_unfinished(experiment)
    assert [other.resume] == run_listing.list_runs(runs)
    run = other.train(attest=True)
    assert isinstance(run, Path)
    model = verify(run / "model", trust_root=here.root, at=instant())
    assert model.keyids == {here.signers["second"].public_key.keyid}
