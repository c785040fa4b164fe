"""The training loop behind an experiment file: its model, optimizer and schedule."""

from __future__ import annotations

from typing import Any

from govray.train.inputs.experiment_config import RECORDED, Experiment
from govray.train.loop.cosine import learning_rate
from govray.train.loop.described_optimizer import make_optimizer
from govray.train.loop.described_schedule import describe_schedule
from govray.train.loop.entrypoint import find_entrypoint
from govray.train.worker.run_start import govern
from govray.train.worker.shard_model import shard

REPORTED = ("loss", "memorization", "rows", "seconds", "step", "targets")
"""Names of the numbers that the loop reports; memorization where the policy's monitor measures."""


def train_loop(config: dict[str, Any]) -> None:
    """The loop that `GovernedTrainer` runs; ``config`` is the JSON of an `Experiment`."""
    experiment = Experiment.model_validate(config, context=RECORDED)
    build, loss = find_entrypoint(experiment)
    model = shard(build)
    optimizer = make_optimizer(experiment.optimizer, model.parameters())
    scheduler = describe_schedule(experiment.schedule)
    run = govern(model, optimizer, scheduler)
    for batch in run.batches():
        if scheduler is None:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(experiment.optimizer, batch.step, experiment.max_steps)
        run.report(run.step(batch, loss))
