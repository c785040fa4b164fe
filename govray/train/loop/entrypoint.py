"""What an experiment's ``entrypoint`` names: the model's class, and the loss beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path

from torch import nn

from govray.engine.gradients.forward import LossFn
from govray.errors import UsageError
from govray.train.inputs.experiment_config import Experiment


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
    build, loss = find_entrypoint(experiment)
    return build(), loss


def find_entrypoint(experiment: Experiment) -> tuple[Callable[[], nn.Module], LossFn]:
    """What builds the model from the hyperparameters, and the ``loss`` function of its module.

    Raises:
        UsageError: As `load_entrypoint`.
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
    return partial(factory, **experiment.hyperparameters), loss


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
