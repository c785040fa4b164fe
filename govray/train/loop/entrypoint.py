"""What an experiment's ``entrypoint`` names: a model's class with its loss, or a training loop.

A function whose only parameter is called ``config`` is a training loop, as `GovernedTrainer` takes
one. Any other callable builds the model from the hyperparameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

from torch import nn

from govray.engine.gradients.forward import LossFn
from govray.errors import GovrayError, UsageError, suggestion
from govray.extras import EXTRAS, install
from govray.train.experiment.import_path import import_named
from govray.train.inputs.experiment_config import Experiment

_CONFIG = "config"

OwnLoop = Callable[[dict[str, Any]], Any]


def own_loop(experiment: Experiment) -> OwnLoop | None:
    """The training loop that the entrypoint names; None if it names a model.

    Raises:
        UsageError: The module or function does not exist. Or it could be either: it builds a model
            from a hyperparameter called ``config`` alone.
    """
    found = _named(experiment)
    if not isfunction(found) or [*signature(found).parameters] != [_CONFIG]:
        return None
    if set(experiment.hyperparameters) == {_CONFIG}:
        raise UsageError(
            f"{experiment.entrypoint} may be a training loop, or a model made from config",
            where="entrypoint",
            do="Call a model's argument by another name",
        )
    return found


def declared_start(experiment: Experiment) -> list[Path]:
    """The files of existing weights that the entrypoint itself reads, for these hyperparameters.

    An entrypoint that may read weights has a static method ``starts_from(hyperparameters)``. It
    returns their paths, all in one folder, or an empty list.
    """
    if own_loop(experiment):
        return []  # a loop names its weights as ``pretrained``
    factory, _ = resolve(experiment)
    starts_from = getattr(factory, "starts_from", None)
    return list(starts_from(experiment.hyperparameters)) if starts_from else []


def load_entrypoint(experiment: Experiment) -> tuple[nn.Module, LossFn]:
    """The model, built from the hyperparameters, and the ``loss`` function of its module."""
    build, loss = find_entrypoint(experiment)
    return build(), loss


def loss_beside(experiment: Experiment) -> LossFn:
    """The ``loss`` function of a training loop's module."""
    module = import_named(experiment.entrypoint.split(":")[0])
    loss: LossFn | None = getattr(module, "loss", None)
    if loss is None:
        raise UsageError(
            "the training loop's module has no loss(model, batch), so only the loop knows it",
            where=f"entrypoint {experiment.entrypoint}",
            do="Import or define beside the loop the `loss` that it gives to run.step",
        )
    return loss


def find_entrypoint(experiment: Experiment) -> tuple[Callable[[], nn.Module], LossFn]:
    """What builds the model from the hyperparameters, and the ``loss`` function of its module."""
    if own_loop(experiment):
        raise UsageError(
            f"{experiment.entrypoint} is a training loop, so only a run of it builds the model",
            where="entrypoint",
            do="Use a run whose entrypoint is the model's class",
        )
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
    names = [each.name for each in known if each.kind is not each.POSITIONAL_ONLY]
    odd = sorted(experiment.hyperparameters.keys() - names)
    if odd and not any(each.kind is each.VAR_KEYWORD for each in known):
        # Before what is missing: one of them may be what was meant.
        raise UsageError(
            f"hyperparameters: the model takes no {odd[0]!r}{suggestion(odd[0], names)}",
            where=f"entrypoint {experiment.entrypoint}",
            do=f"It takes {', '.join(names)}; a training loop has one parameter called config",
        )
    try:
        signature(factory).bind(**experiment.hyperparameters)
    except TypeError as error:
        raise UsageError(
            f"hyperparameters: {error}",
            where=f"entrypoint {experiment.entrypoint}",
            do="Give what it takes, or, for a training loop, one parameter called config",
        ) from None
    return partial(factory, **experiment.hyperparameters), loss


def resolve(experiment: Experiment) -> tuple[Callable[..., nn.Module], LossFn]:
    """The model's class that the entrypoint names, and the loss beside it."""
    factory = _named(experiment)
    return factory, _named(experiment, "loss")


def _named(experiment: Experiment, name: str | None = None) -> Any:
    """What the entrypoint names, or something else of its module."""
    module_name, own = experiment.entrypoint.split(":")
    where = f"entrypoint {experiment.entrypoint}"
    try:
        module = import_named(module_name)
        return getattr(module, name or own)
    except (ImportError, AttributeError) as error:
        # What the module imports in its turn may be what is missing.
        extra = EXTRAS.get(str(getattr(error, "name", "")).partition(".")[0])
        raise UsageError(
            str(error),
            where=where,
            do=f"Run {install(extra)}"
            if extra and isinstance(error, ModuleNotFoundError)
            else "Name an importable module:class, and beside it loss(model, batch); or module:"
            "function with one parameter, config",
        ) from error
    except GovrayError:
        raise
    except Exception as error:  # of the user's module, whatever it is
        raise UsageError(
            f"the module can't be imported: {type(error).__name__}: {error}",
            where=where,
            do="Mend it: `python -c 'import " + module_name + "'` shows where",
        ) from error
