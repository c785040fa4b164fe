"""The training loop behind an experiment file whose entrypoint is a Flax model.

The class is called with the hyperparameters, and with ``rngs`` of the run's seed. The optimizer is
the file's AdamW with its warm-up and cosine. Beside the class stands its ``loss(model, batch)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from govray.errors import UsageError
from govray.train.experiment.sections import ADAMW, COSINE, FLOOR, Optimizer
from govray.train.inputs.experiment_config import Experiment
from govray.train.jax.run_start import govern


def train_flax(
    experiment: Experiment, build: Callable[..., Any], loss: Callable[..., Array]
) -> None:
    """Train one governed run; on the driver, end its discovery.

    Args:
        build: What the entrypoint names.
        loss: Unreduced losses, one for each loss target.

    Raises:
        UsageError: The class takes other arguments, builds no Flax model, or optimizer or schedule
            are torch's.
    """
    run = govern(build_flax(build, experiment), optimizer_of(experiment))
    for batch in run.batches():
        run.report(run.step(batch, loss))


def build_flax(build: Callable[..., Any], experiment: Experiment) -> nnx.Module:
    """The entrypoint's model, from the hyperparameters and the seed."""
    where = f"entrypoint {experiment.entrypoint}"
    try:
        model = build(**experiment.hyperparameters, rngs=nnx.Rngs(experiment.seed))
    except TypeError as error:
        raise UsageError(
            f"hyperparameters: {error}",
            where=where,
            do="Give what it takes, besides rngs; or name a training loop with one parameter, "
            "config",
        ) from None
    if not isinstance(model, nnx.Module):
        raise UsageError(
            f"it builds a {type(model).__name__}, and framework: jax wants an nnx.Module",
            where=where,
            do="Leave framework out, or name a Flax model",
        )
    return model


def optimizer_of(experiment: Experiment) -> optax.GradientTransformation:
    described = experiment.optimizer
    for name, given, built in (
        ("optimizer.name", described.name, ADAMW),
        ("schedule.name", experiment.schedule.name, COSINE),
    ):
        if given != built:
            raise UsageError(
                f"{name} is {given}, which is built over torch alone",
                where="framework: jax",
                do="Leave it out, or write a training loop with an optimizer of Optax",
            )
    return optax.adamw(
        _Rate(described, experiment.steps),
        b1=described.betas[0],
        b2=described.betas[1],
        weight_decay=described.weight_decay,
    )


class _Rate:
    """Linear warm-up, then a cosine down to a tenth at the last step of the plan."""

    def __init__(self, described: Optimizer, max_steps: int) -> None:
        self._described = described
        self._rest = max(1, max_steps - described.warmup_steps)

    def __call__(self, step: Array) -> Array:
        warm, lr = self._described.warmup_steps, self._described.lr
        done = (step - warm) / self._rest
        cosine = lr * (FLOOR + (1 - FLOOR) * 0.5 * (1 + jnp.cos(jnp.pi * done)))
        return jnp.where(step < warm, lr * (step + 1) / max(1, warm), cosine)
