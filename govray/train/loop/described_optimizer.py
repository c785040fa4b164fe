"""The optimizer that an experiment file describes.

On a GPU its kernels are fused where its class has such, since one launch then moves many
parameters. On a CPU they are not, so a run there keeps the bits that it always had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, isclass, signature
from typing import Any, TypeVar

import torch
from torch import nn

from govray.engine.startup.optimizer_kinds import refuse_undriven, without_compiler
from govray.errors import GovrayError, UsageError, nearest, suggestion
from govray.train.experiment.import_path import import_named, split_path
from govray.train.experiment.sections import ADAMW, Optimizer

_WHERE = "optimizer"
_OTHER_KERNELS = ("fused", "foreach", "differentiable")
"""Arguments by which a user has chosen the kernels."""


def make_optimizer(
    described: Optimizer, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer over some parameters, on the device where they are now.
    Raises ``Refused``: a governed step can't call it."""
    over = list(parameters)
    if described.name == ADAMW:
        return torch.optim.AdamW(
            over,
            lr=described.lr,
            betas=described.betas,
            weight_decay=described.weight_decay,
            **_fused(torch.optim.AdamW, over, {}),
        )
    kind: Any = imported_class(described.name, torch.optim.Optimizer, where=f"{_WHERE}.name")
    given = {"lr": described.lr, **described.arguments}
    check_arguments(kind, given, where=f"{_WHERE}.arguments")
    with constructing(kind, where=f"{_WHERE}.arguments"):
        made: torch.optim.Optimizer = kind(over, **given, **_fused(kind, over, given))
    refuse_undriven(made)
    return made


def check_optimizer(described: Optimizer) -> torch.optim.Optimizer:
    """Build it over a tiny parameter, before there is a model. Discovery builds it over that."""
    with without_compiler():
        return make_optimizer(described, [nn.Parameter(torch.zeros(2, 2))])


def _fused(kind: type, over: Sequence[nn.Parameter], given: dict[str, Any]) -> dict[str, bool]:
    """``fused=True`` where the class takes it, the user chose no kernels, and all is on a GPU."""
    if "fused" not in signature(kind).parameters or any(n in given for n in _OTHER_KERNELS):
        return {}
    on_gpu = all(each.is_cuda and each.is_floating_point() for each in over)
    return {"fused": True} if over and on_gpu else {}


Base = TypeVar("Base")


def imported_class(name: str, base: type[Base], *, where: str) -> type[Base]:
    """The class of an import path. ``name``: ``module.Class`` or ``module:Class``."""
    module_name, class_name = split_path(name)
    try:
        module = import_named(module_name)
    except ImportError as error:
        raise UsageError(
            f"{name} can't be imported: {error}",
            where=where,
            do="Name an importable module.Class; the working directory counts",
        ) from error
    found = getattr(module, class_name, None)
    if not (isclass(found) and issubclass(found, base)) or found is base:
        known = {
            each.lower(): each
            for each, kind in vars(module).items()
            if isclass(kind) and issubclass(kind, base) and kind is not base
        }
        near = known.get(nearest(class_name.lower(), known) or "")
        what = "does not exist" if found is None else f"is no {base.__name__} to use"
        raise UsageError(
            f"{name} {what}" + (f" (did you mean {near!r}?)" if near else ""),
            where=where,
            do=f"Name a subclass of {base.__module__}.{base.__name__}",
        )
    return found


@contextmanager
def constructing(kind: type, *, where: str) -> Iterator[None]:
    """Inside, a class may refuse its arguments by any exception; what is raised names it."""
    try:
        yield
    except GovrayError:
        raise
    except Exception as error:  # of a user's own class, whatever it is
        raise UsageError(
            f"{kind.__name__}: {error or type(error).__name__}",
            where=where,
            do="Give it what its constructor takes",
        ) from error


def check_arguments(kind: type, given: Mapping[str, Any], *, where: str) -> None:
    """Compare arguments by name with those that a class takes behind its first."""
    first, *parameters = signature(kind).parameters.values()
    takes = {each.name for each in parameters if each.kind is not Parameter.VAR_KEYWORD}
    open_ended = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    for name in given:
        if name == first.name:
            raise UsageError(f"{name} is what govray gives itself", where=where, do="Leave it out")
        if name not in takes and not open_ended:
            raise UsageError(
                f"{kind.__name__} takes no argument {name!r}{suggestion(name, takes)}",
                where=where,
                do=f"It takes {', '.join(each.name for each in parameters)}",
            )
    optional = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    for each in parameters:
        needed = each.default is Parameter.empty and each.kind not in optional
        if needed and each.name not in given:
            raise UsageError(
                f"{kind.__name__} needs the argument {each.name!r}", where=where, do="Give it"
            )
