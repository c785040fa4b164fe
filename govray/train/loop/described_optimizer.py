"""The optimizer that an experiment file describes.

On a GPU its kernels are fused where its class has such, since one launch then moves many
parameters. On a CPU they are not, so a run there keeps the bits that it always had.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import nn

from govray.engine.startup.optimizer_kinds import refuse_undriven
from govray.engine.startup.without_compiler import without_compiler
from govray.errors import GovrayError, UsageError
from govray.train.experiment.sections import ADAMW, Optimizer
from govray.train.loop.imported_class import check_arguments, imported_class

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
    try:
        made: torch.optim.Optimizer = kind(over, **given, **_fused(kind, over, given))
    except GovrayError:
        raise
    except Exception as error:  # of a user's own class, whatever it is
        raise UsageError(
            f"{kind.__name__}: {error or type(error).__name__}",
            where=f"{_WHERE}.arguments",
            do="Give it what its constructor takes",
        ) from error
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
