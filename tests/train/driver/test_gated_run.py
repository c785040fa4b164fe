"""A run whose credential expires on the way, from its experiment to a replay. One rank, no Ray."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from govray.governance.attestation import model_folder
from govray.governance.verify.verifier import verify
from govray.train.attest.write_model import write_model
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.gating import UNDECIDED
from govray.train.replay import replayed_run as replaying
from govray.train.replay.replayed_run import replay
from govray.train.run_folder import events
from tests.support import loops
from tests.support.deployment import Deployment
from tests.support.solo import run_here

EXPIRES_IN = 3


def test_a_gated_run_is_attested_verified_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    text = Deployment(tmp_path / "plain").policy_text.replace("on_expiry: stop", "on_expiry: gate")
    here = Deployment(tmp_path / "here", policy_text=text)
    shutil.rmtree(here.corpora / "open-one")
    here.add("open-one", until=here.at - timedelta(minutes=1))
    value = here.experiment(
        max_steps=8,
        checkpoint={"every_steps": 2, "save_trial_latest": 9},
        resources={"num_workers": 1},
    )
    trainer = from_experiment(parse_experiment(value, where="test"))
    with loops.clock_behind(3600) as set_right:

        def expires(config: dict[str, Any]) -> None:
            loops._run(config, lambda step: set_right() if step == EXPIRES_IN else None)

        run = replace(trainer, train_loop_per_worker=expires).train()
    write_model(run, trainer.signer())

    model = verify(run / "model", trust_root=here.root)
    [gate] = model.gates
    assert (gate.corpus, gate.step, gate.reason) == ("open-one", EXPIRES_IN + 1, "expired")
    read = {leaf.step for leaf in model.ledger.steps if "open-one" in leaf.corpora}
    assert read == set(range(EXPIRES_IN + 1))
    assert (run / "model" / model_folder.GATES).is_file()
    assert [e.gate for e in events.read(run) if isinstance(e, events.Gated)] == [gate]

    # Long after the credential ended, a replay leaves out what the run left out.
    outcome = replay(run)
    assert outcome.identical
    # The control: without the run's decisions it reads the corpus to the end.
    monkeypatch.setattr(replaying.gating, "resumed", lambda *_: UNDECIDED)
    control = replay(run)
    assert not control.identical
    assert control.leaf is not None
    assert control.leaf.step == EXPIRES_IN + 1
