"""An optimizer's state as tensors and JSON, and back, without pickle.

Tensors keep their dtype and bits, where ``Optimizer.load_state_dict`` casts them
to the parameter's. Parameters go by name, so the order of groups is checked and
never assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from govray.errors import Malformed, UsageError
from govray.train.checkpoint.tensor_shards import local_shard

Scalar = None | bool | int | float | str

_MAY_DIFFER = frozenset(
    {"params", "lr", "initial_lr", "weight_decay", "foreach", "fused", "capturable"}
)


def optimizer_state(
    optimizer: Optimizer, names: Mapping[Parameter, str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state without pickle.

    Args:
        optimizer: Any whose state and hyperparameters are tensors (state only),
            finite numbers, booleans, strings, ``None``, or tuples of these.
        names: A name for each of its parameters; FQNs, by convention.

    Returns:
        Tensors named ``<state key>/<parameter name>``, and a JSON value with the param groups and
        the state that is not tensors. The tensors are the optimizer's own, so their shape, dtype
        and device are its choice, and its next step changes them;
        `govray.train.checkpoint.tensor_shards.held_here` copies them. A parameter that was never
        stepped has no entry, here as there.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        groups.append(
            {
                "parameters": [_name(names, parameter, index) for parameter in group["params"]],
                "hyperparameters": {
                    key: _storable(value, f"param group {index}, {key}")
                    for key, value in group.items()
                    if key != "params"
                },
            }
        )
        for parameter in group["params"]:
            name = names[parameter]
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{key}/{name}"] = value
                else:
                    values.setdefault(name, {})[key] = _storable(value, f"{name}, {key}")
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "values": values}


def restore_optimizer(
    optimizer: Optimizer,
    names: Mapping[Parameter, str],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> None:
    """Put back what ``optimizer_state`` returned, into an optimizer built the same way.

    Args:
        optimizer: Its state is replaced.
        tensors: By name. They keep their dtype and bits, and go to the
            device where the optimizer keeps them. A whole one of a sharded parameter's shape is
            cut as that is.

    Raises:
        Malformed: If the optimizer's class or its parameters in their groups and
            order differ, or a tensor belongs to no parameter. Nothing is changed then.
    """
    hyperparameters, values = _fitting(optimizer, names, tensors, state)
    for group, stored in zip(optimizer.param_groups, hyperparameters, strict=True):
        group.update({key: _like(value, group.get(key)) for key, value in stored.items()})
    _take(optimizer, names, values)


def begin_optimizer(
    optimizer: Optimizer,
    names: Mapping[Parameter, str],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> None:
    """Take over another run's moments and counts. Settings stay this run's.

    Args:
        names: Of the base model's parameters, which are all that the optimizer has yet. What is
            stored of adapters is left out.

    Raises:
        Malformed: As `restore_optimizer`; or as `require_same_optimizer`.
    """
    require_same_optimizer(optimizer, names, state)
    own = {*names.values()}
    kept = {key: each for key, each in tensors.items() if key.partition("/")[2] in own}
    _, values = _fitting(optimizer, names, kept, _without_adapters(names, state))
    _take(optimizer, names, values)


def require_same_optimizer(
    optimizer: Optimizer, names: Mapping[Parameter, str], state: Mapping[str, Any]
) -> None:
    """Refuse an optimizer that can't go on with the moments that another run's one kept.

    Moments are averages by the settings under which they arose, so these have to agree. How far a
    step goes may differ, and so may the kernels.

    Raises:
        Malformed: As `restore_optimizer`, or a setting differs.
    """
    hyperparameters, _ = _fitting(optimizer, names, {}, _without_adapters(names, state))
    for group, stored in zip(optimizer.param_groups, hyperparameters, strict=True):
        for key in group.keys() - _MAY_DIFFER:
            if (there := _like(stored.get(key), group[key])) != group[key]:
                raise Malformed(
                    f"{key} was {there}, and is {group[key]} here",
                    where="optimizer state",
                    do=f"Set {key} as it was, or begin without the optimizer's state",
                )


def _without_adapters(names: Mapping[Parameter, str], state: Mapping[str, Any]) -> dict[str, Any]:
    """A stored state without the param groups that adapters have for themselves."""
    own = {*names.values()}
    try:
        groups = [each for each in state["groups"] if own & {*each["parameters"]}]
        values = {name: each for name, each in state["values"].items() if name in own}
    except (KeyError, TypeError, AttributeError) as error:
        raise Malformed("not a stored optimizer state", where="optimizer state") from error
    return {**state, "groups": groups, "values": values}


def _fitting(
    optimizer: Optimizer,
    names: Mapping[Parameter, str],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The hyperparameters of each param group, and each parameter's state."""
    kind = type(optimizer).__name__
    here = [
        [_name(names, parameter, index) for parameter in group["params"]]
        for index, group in enumerate(optimizer.param_groups)
    ]
    try:
        there = [group["parameters"] for group in state["groups"]]
        hyperparameters = [dict(group["hyperparameters"]) for group in state["groups"]]
        values = {name: dict(entries) for name, entries in state["values"].items()}
        stored_kind = state["kind"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Malformed("not a stored optimizer state", where="optimizer state") from error
    if any("params" in stored for stored in hyperparameters):
        raise Malformed("params is no hyperparameter", where="optimizer state")
    if stored_kind != kind or there != here:
        raise Malformed(
            f"stored for {stored_kind} over {sum(map(len, there))} parameters, which is not "
            f"this {kind} over {sum(map(len, here))}",
            where="optimizer state",
            do="Build the optimizer over the same parameters, groups and order",
        )
    parameters = {name for group in here for name in group}
    for tensor_name, tensor in tensors.items():
        key, _, name = tensor_name.partition("/")
        if name not in parameters:
            raise Malformed(f"{tensor_name} belongs to no parameter", where="optimizer state")
        values.setdefault(name, {})[key] = tensor
    if unknown := values.keys() - parameters:
        raise Malformed(f"{min(unknown)} is no parameter", where="optimizer state")
    return hyperparameters, values


def _take(
    optimizer: Optimizer,
    names: Mapping[Parameter, str],
    values: Mapping[str, Mapping[str, Any]],
) -> None:
    optimizer.state.clear()
    for group in optimizer.param_groups:
        # torch counts steps on the CPU unless the kernel reads the count on the device.
        steps_on_device = bool(group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            for key, value in values.get(names[parameter], {}).items():
                if isinstance(value, Tensor):
                    on_device = key != "step" or steps_on_device
                    value = value.clone().to(parameter.device if on_device else "cpu")
                    if value.shape == parameter.shape:
                        value = local_shard(value, parameter)
                optimizer.state[parameter][key] = value


def _name(names: Mapping[Parameter, str], parameter: Parameter, group: int) -> str:
    if parameter not in names:
        raise UsageError(
            f"a parameter of shape {tuple(parameter.shape)} has no name",
            where=f"optimizer, param group {group}",
            do="Give the optimizer the parameters of the model and its adapters only",
        )
    return names[parameter]


def _storable(value: Any, where: str) -> Any:
    if isinstance(value, tuple | list):
        return [_storable(item, where) for item in value]
    if isinstance(value, Scalar) and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    raise UsageError(
        f"a {type(value).__name__} in the optimizer cannot be stored",
        where=where,
        do="Use finite numbers, booleans, strings and tuples of them",
    )


def _like(value: Any, present: Any) -> Any:
    """Undo what JSON loses: tuples become lists, and canonical JSON writes 1.0 as 1."""
    if isinstance(present, tuple) and isinstance(value, list) and len(value) == len(present):
        return tuple(_like(item, old) for item, old in zip(value, present, strict=True))
    if isinstance(present, float) and type(value) is int:
        return float(value)
    return value
