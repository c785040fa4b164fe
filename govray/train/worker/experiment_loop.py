"""The training loop behind an experiment file: the entrypoint's model, AdamW, a cosine schedule.

The learning rate depends on the plan step and the configured length, never on the amount of data.
So leaving a corpus out changes no other update.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from govray.engine.gradients.forward import LossFn
from govray.errors import UsageError
from govray.train.experiment.optimizer import Optimizer
from govray.train.inputs.experiment_config import RECORDED, Experiment
from govray.train.worker.run_start import govern
from govray.train.worker.shard_model import shard

FLOOR = 0.1
"""Share of the learning rate that the cosine ends at."""


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


def learning_rate(optimizer: Optimizer, step: int, max_steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth at the last step."""
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / optimizer.warmup_steps
    done = (step - optimizer.warmup_steps) / max(1, max_steps - optimizer.warmup_steps)
    return optimizer.lr * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


def declared_start(experiment: Experiment) -> list[Path]:
    """The files of existing weights that the entrypoint itself reads, for these hyperparameters.

    An entrypoint that may read weights has a static method ``starts_from(hyperparameters)``. It
    returns their paths, all in one folder, or an empty list.

    Raises:
        UsageError: The module, class or loss does not exist, or the entrypoint finds a file
            missing.
    """
    factory, _ = resolve(experiment)
    starts_from = getattr(factory, "starts_from", None)
    return list(starts_from(experiment.hyperparameters)) if starts_from else []


def load_entrypoint(experiment: Experiment) -> tuple[nn.Module, LossFn]:
    """The model, built from the hyperparameters, and the ``loss`` function of its module.

    Raises:
        UsageError: The module, class, loss or an argument does not exist.
    """
    factory, loss = resolve(experiment)
    known = signature(factory).parameters.values()
    if (
        experiment.data.attention == "record"
        and "separator" not in {each.name for each in known}
        and not any(each.kind is each.VAR_KEYWORD for each in known)
    ):
        raise UsageError(
            f"the model {experiment.entrypoint} does not take the separator of records",
            where="data.attention",
            do="Leave the field out, or give the class an argument `separator`: the token id that "
            "begins a record",
        )
    try:
        signature(factory).bind(**experiment.hyperparameters)
    except TypeError as error:
        raise UsageError(
            f"hyperparameters: {error}", where=f"entrypoint {experiment.entrypoint}"
        ) from None
    return factory(**experiment.hyperparameters), loss


def resolve(experiment: Experiment) -> tuple[Callable[..., nn.Module], LossFn]:
    """What the entrypoint names, and the loss beside it.

    Raises:
        UsageError: The module, class or loss does not exist.
    """
    module_name, class_name = experiment.entrypoint.split(":")
    try:
        module = import_module(module_name)
        return getattr(module, class_name), module.loss
    except (ImportError, AttributeError) as error:
        raise UsageError(
            str(error),
            where=f"entrypoint {experiment.entrypoint}",
            do="Name an importable module:class; the module also has loss(model, batch)",
        ) from error
