"""How a run averages its weights, in its record and its model folder. One rank, no Ray."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import govray
from govray.engine.model import gpt
from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.train import govern
from govray.train.driver.trainer import GovernedTrainer, from_experiment
from govray.train.experiment.sections import Ema
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.replay.replayed_run import replay
from tests.support.deployment import Deployment
from tests.support.solo import run_here


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    run_here(monkeypatch)
    return Deployment(tmp_path / "here")


def own_loop(config: dict[str, Any]) -> None:
    model = gpt.GPT(blocks=2, width=16, context=32, vocabulary=257)
    run = govern(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    for batch in run.batches():
        run.report(run.step(batch, gpt.loss))


def trainer_of(here: Deployment, **file: Any) -> GovernedTrainer:
    """A trainer of four steps that keeps an average, whatever the file says of one."""
    value = here.experiment(
        max_steps=4, checkpoint={"every_steps": 2}, resources={"num_workers": 1}, **file
    )
    trainer = from_experiment(parse_experiment(value, where="test"))
    return replace(trainer, ema=Ema(decay=0.5, every=2))


def stated(run: Any) -> Any:
    return json.loads((run / "model" / model_folder.CONFIG).read_bytes()).get("ema")


def test_a_script_s_model_folder_says_how_its_average_was_made(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = replace(trainer_of(here), train_loop_per_worker=own_loop, experiment=None)
    with monkeypatch.context() as dying:
        dying.setattr(RunRecord, "end", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.train()
    [run] = (here.folder / "runs").glob("*-*")
    with pytest.raises(Refused, match="changed since the run began: the average of the weights"):
        replace(trainer, resume=run, ema=Ema(decay=0.9)).train()
    assert replace(trainer, resume=run).train(attest=True) == run
    assert read_record(run).ema == Ema(decay=0.5, every=2)
    assert stated(run) == {"decay": 0.5, "every": 2}
    assert (run / "model" / model_folder.EMA).is_file()
    govray.verify(run / "model", trust_root=here.root)


@pytest.mark.parametrize("section", [None, {"decay": 0.999, "every": 1}])
def test_a_replay_averages_as_the_run_did_and_not_as_its_file_says(
    here: Deployment, section: Any
) -> None:
    run = trainer_of(here, **({"ema": section} if section else {})).train(attest=True)
    assert stated(run) == {"decay": 0.5, "every": 2}
    found = replay(run)
    assert found.identical
    assert model_folder.EMA in found.original
