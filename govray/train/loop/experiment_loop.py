"""The training loop behind an experiment file: the entrypoint's model, AdamW, a cosine schedule."""

from __future__ import annotations

from typing import Any

import torch

from govray.train.inputs.experiment_config import RECORDED, Experiment
from govray.train.loop.cosine import learning_rate
from govray.train.loop.entrypoint import load_entrypoint
from govray.train.worker.run_start import govern
from govray.train.worker.shard_model import shard

REPORTED = ("loss", "memorization", "rows", "seconds", "step", "targets")
"""Names of the numbers that the loop reports; memorization where the policy's monitor measures."""


def train_loop(config: dict[str, Any]) -> None:
    """The loop that `GovernedTrainer` runs; ``config`` is the JSON of an `Experiment`."""
    experiment = Experiment.model_validate(config, context=RECORDED)
    model, loss = load_entrypoint(experiment)
    shard(model)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=experiment.optimizer.lr,
        betas=experiment.optimizer.betas,
        weight_decay=experiment.optimizer.weight_decay,
    )
    run = govern(model, optimizer)
    for batch in run.batches():
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(experiment.optimizer, batch.step, experiment.max_steps)
        run.report(run.step(batch, loss))
