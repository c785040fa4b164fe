"""A run that leaves out the only corpus of an adapter has no such adapter, and is attested."""

from __future__ import annotations

import govray
from govray.train.attest.write_model import write_model
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from tests.support.deployment import Deployment


def test_its_adapter_is_not_made(here: Deployment) -> None:
    value = here.experiment(resources={"num_workers": 1})
    value["data"] = {**value["data"], "exclude": ["acme"]}  # type: ignore[dict-item]
    trainer = GovernedTrainer(parse_experiment(value, where="test"))
    model = write_model(trainer.train(), trainer.signer())
    verified = govray.verify(model, trust_root=here.root)
    assert verified.attestation.adapters == ()
    assert not list(model.glob("adapter*"))
    assert "acme" in {each.corpus for each in verified.attestation.corpora}
