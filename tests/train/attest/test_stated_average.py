"""How a run averages its weights, in its record and its model folder. One rank, no Ray."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import govray
from govray.engine.model import gpt
from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.train import govern
from govray.train.driver.trainer import GovernedTrainer
from govray.train.experiment.sections import Ema
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.replay.replayed_run import replay
from tests.support.deployment import Deployment

AVERAGE = {"decay": 0.5, "every": 2}


def own_loop(config: dict[str, Any]) -> None:
    model = gpt.GPT(blocks=2, width=16, context=32, vocabulary=257)
    run = govern(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    for batch in run.batches():
        run.report(run.step(batch, gpt.loss))


def trainer_of(here: Deployment, ema: Any, **more: Any) -> GovernedTrainer:
    """A trainer of four steps that keeps an average."""
    value = here.experiment(
        max_steps=4, checkpoint={"every_steps": 2}, resources={"num_workers": 1}, ema=ema
    )
    return GovernedTrainer(parse_experiment(value, where="test"), **more)


def stated(run: Any) -> Any:
    return json.loads((run / "model" / model_folder.CONFIG).read_bytes()).get("ema")


def test_a_script_s_model_folder_says_how_its_average_was_made(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: Any = {"train_loop_per_worker": own_loop, "train_loop_config": {}}
    with monkeypatch.context() as dying:
        dying.setattr(RunRecord, "end", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer_of(here, AVERAGE, **script).train()
    [run] = (here.folder / "runs").glob("*-*")
    with pytest.raises(Refused, match="changed since the run began: the average of the weights"):
        trainer_of(here, {"decay": 0.9}, resume=run, **script).train()
    assert trainer_of(here, AVERAGE, resume=run, **script).train(attest=True) == run
    assert read_record(run).ema == Ema(decay=0.5, every=2)
    assert stated(run) == AVERAGE
    assert (run / "model" / model_folder.EMA).is_file()
    govray.verify(run / "model", trust_root=here.root)


def test_a_replay_averages_as_the_run_did(here: Deployment) -> None:
    run = trainer_of(here, AVERAGE).train(attest=True)
    assert stated(run) == AVERAGE
    found = replay(run)
    assert found.identical
    assert model_folder.EMA in found.original
