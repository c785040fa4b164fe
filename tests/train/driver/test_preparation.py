"""Prepared data: signed by any operator of the trust root, used by runs that have no key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from govray.data.admission import Prepared
from govray.errors import Stopped, Untrusted
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.record.prepare_manifest import MANIFEST_FILE
from govray.governance.trust.authority import TrustRoot
from govray.governance.trust.trust_state import sign_root
from govray.governance.verify.verifier import verify
from govray.train.driver.trainer import GovernedTrainer, from_experiment, new_or_unfinished
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.run_folder import stop_request
from govray.train.run_folder.clock import instant
from tests.support.deployment import Deployment
from tests.support.solo import run_here


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


def trainer(here: Deployment, **more: Any) -> GovernedTrainer:
    experiment = parse_experiment(here.experiment(max_steps=4), where="test")
    return from_experiment(experiment, **more)


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
    here.root.write_bytes(sign_root(here.root_of("second", version=2), [here.signers["root"]]))
    rotated = trainer(here, attestation_key=here.key_of("second")).prepare()
    assert rotated.folder != first.folder
    assert first.folder.is_dir()


def test_a_run_goes_on_under_another_key_of_its_operator(here: TwoKeys) -> None:
    experiment = parse_experiment(here.experiment(max_steps=4), where="test")
    runs = here.folder / "runs"

    def stop(step: int, metrics: Any) -> None:
        [run] = run_listing.list_runs(runs)
        stop_request.request(run, "a test")

    with pytest.raises(Stopped):
        new_or_unfinished(experiment, on_step=stop).train(attest=True)
    other = new_or_unfinished(experiment, attestation_key=here.key_of("second"))
    assert [other.resume] == run_listing.list_runs(runs)
    run = other.train(attest=True)
    assert isinstance(run, Path)
    model = verify(run / "model", trust_root=here.root, at=instant())
    assert model.keyids == {here.signers["second"].public_key.keyid}
