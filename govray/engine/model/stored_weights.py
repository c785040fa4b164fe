"""A model filled from stored tensors: each of its own is there, each of theirs is then in it.

All weights that torch reads from a file come in here, whichever file it is. A model may do as it
likes while it loads (hooks, buffers that share memory), so what it holds is compared afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from govray.errors import GovrayError, UsageError

_SHOWN = 3
_DO = "Give weights that were saved from this model, with the same hyperparameters"


class Stored(NamedTuple):
    """A tensor in a file: its shape, and whether its numbers are floating point."""

    shape: tuple[int, ...]
    floating: bool


def fill(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    where: str,
    error: type[GovrayError] = UsageError,
    do: str = _DO,
) -> None:
    """Load tensors into a model, all of them and nothing else.

    Args:
        model: On any device; each tensor is converted to the dtype that it has there.
        tensors: By the names of its state; a tied tensor has any or all of its names.
        where: The file or folder that they were read from.
        error, do: What is raised, and its advice.

    Raises:
        GovrayError: Of that type. Names tensors that do not fit, and nothing is loaded then; or
            one that the model does not hold after it loaded them.
    """
    stored = {
        name: Stored(tuple(value.shape), value.is_floating_point())
        for name, value in tensors.items()
    }
    require_names(model, stored, where=where, error=error, do=do)
    model.load_state_dict(dict(tensors), strict=False)
    require_held(model.state_dict(), tensors, where=where, error=error, do=do)


def require_names(
    model: nn.Module,
    stored: Mapping[str, Stored],
    *,
    where: str,
    error: type[GovrayError] = UsageError,
    do: str = _DO,
) -> None:
    """Return if stored tensors are those of a model, by name, shape and kind.

    Args:
        model: On any device, the meta device included.
        stored: By name.
        where, error, do: As `fill`.

    Raises:
        GovrayError: Of that type. Names those that are not.
    """
    first = first_names(model)
    state = {name: value for name, value in model.state_dict().items() if name in first}
    filled = {first[name] for name in stored if name in first}
    problems = {
        "missing": [name for name in dict.fromkeys(first.values()) if name not in filled],
        "unexpected": [name for name in sorted(stored) if name not in first],
        "of another shape": [
            f"{name} is {tuple(found.shape)}, the model's {tuple(state[name].shape)}"
            for name, found in sorted(stored.items())
            if name in state and tuple(found.shape) != tuple(state[name].shape)
        ],
        "of another dtype": [
            name
            for name, found in sorted(stored.items())
            if name in state and found.floating != state[name].is_floating_point()
        ],
    }
    found = [f"{kind}: {_listed(names)}" for kind, names in problems.items() if names]
    if found:
        raise error(
            f"the tensors are not those of {type(model).__name__}: {'; '.join(found)}",
            where=where,
            do=do,
        )


def require_held(
    held: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    *,
    where: str,
    error: type[GovrayError] = UsageError,
    do: str = _DO,
) -> None:
    """Return if every stored tensor is held, number by number.

    Args:
        held: What a model holds by the same names, after it was filled.
        tensors: What it was filled from.
        where, error, do: As `fill`.

    Raises:
        GovrayError: Of that type. Names the first that is not.
    """
    for name, tensor in tensors.items():
        if not equal(tensor, held[name]):
            raise error(
                f"tensor {name} has other numbers in the file than in the model that read it",
                where=where,
                do=f"{do}; it may tie what the file doesn't, convert it, or lack such numbers",
            )


def equal(stored: Tensor, held: Tensor) -> bool:
    """Whether a model's tensor is the stored one, rounded to the dtype of the model's.

    Numbers that the dtype has no place for (beyond its range) differ; NaN is NaN.
    """
    one, other = _here(stored), _here(held)
    if one.shape != other.shape:
        return False
    read = one.to(other)
    if not other.is_floating_point():
        return torch.equal(read, other) and torch.equal(read.to(one), one)
    in_range = one.dtype == other.dtype or torch.equal(read.isinf().to(one.device), one.isinf())
    return in_range and torch.allclose(read, other, rtol=0, atol=0, equal_nan=True)


def first_names(model: nn.Module) -> dict[str, str]:
    """Every name of every tensor of the model's state → the first one of the same tensor."""
    parameters: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parameters.setdefault(parameter, name)
    tied = {
        name: parameters[parameter]
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    return {
        name: tied.get(name, name)
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }


def _here(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
