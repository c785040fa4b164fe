"""Where a worker computes: its device, the model and optimizer on it, and its first weights.

A model that is wholly on the CPU is moved. One that its loop put elsewhere was put there for a
reason, which nobody here can know. So it is refused unless it is on the worker's device.

Moving keeps every `Parameter` the object that it is, so that an optimizer made before holds it
still. What the optimizer keeps of it goes along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from govray.engine.gradients.precision import cast_parameters
from govray.errors import Refused, UsageError
from govray.train.checkpoint.tensor_shards import is_sharded
from govray.train.inputs.order import Assignment
from govray.train.state.pretrained import load_start

_CPU = torch.device("cpu")


def place_on(
    device: torch.device, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Have the model, and what the optimizer keeps of its parameters, on the worker's device.

    Args:
        model: Wholly on that device or on the CPU. A model without values, on the meta device,
            stays there.
        optimizer: Over the model's parameters, if it was made already.

    Raises:
        Refused: The model is spread over devices, or on another one, or sharded over another kind
            of device, or can't be moved under an optimizer.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found = {each.device: name for name, each in reversed(tensors.items())}  # the first on each
    _refuse_shards(device, tensors)
    if len(found) > 1:
        where = ", ".join(f"{name} on {each}" for each, name in reversed(found.items()))
        raise Refused(
            f"the model is spread over devices: {where}",
            where="govern()",
            do=f"Leave it on the CPU, or move all of it to ray.train.torch.get_device(): {device}",
        )
    for here, name in found.items():
        if here == _CPU and here != device:
            _move(device, model, optimizer)
        elif here not in (device, torch.device("meta")):
            raise Refused(
                f"{name} is on {here}, and this worker computes on {device}",
                where="govern()",
                do="Leave the model on the CPU, or move it to ray.train.torch.get_device()"
                + (
                    "; a GPU for each worker is resources.gpus_per_worker: 1"
                    if device == _CPU
                    else ""
                ),
            )


def _refuse_shards(device: torch.device, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor) and tensor.device_mesh.device_type != device.type:
            raise Refused(
                f"{name} is sharded over devices of type {tensor.device_mesh.device_type}, and "
                f"this worker computes on {device}",
                where="govern()",
                do="Call govray.train.shard(model), which shards on the worker's device",
            )


def _move(device: torch.device, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    before = dict(model.named_parameters())
    model.to(device)
    for name, parameter in model.named_parameters():
        if optimizer is not None and parameter is not before[name]:
            raise Refused(
                f"moving {name} to {device} made a new parameter that the optimizer does not have",
                where="govern()",
                do="Move the model to ray.train.torch.get_device() before making the optimizer",
            )
    if optimizer is not None:
        _move_state(optimizer)


def _move_state(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        # torch counts steps on the CPU unless the kernel reads the count on the device.
        steps_stay = not (group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, Tensor) and not (key == "step" and steps_stay):
                    state[key] = value.to(parameter.device)


def begin_with(model: nn.Module, assignment: Assignment) -> None:
    """Put the weights that the run begins with into a model, on every rank. Collective.
    Raises ``UsageError``: the model is sharded, and may begin elsewhere than the run says."""
    if is_sharded(model):
        raise UsageError(
            "the model was sharded before it had the weights that the run begins with",
            where=type(model).__name__,
            do="Call govray.train.shard(model) instead of fully_shard",
        )
    if assignment.order.start and not assignment.shard.checkpoint:
        load_start(model, assignment.order.start)
    broadcast([*model.parameters(), *model.buffers()])
    if assignment.order.settings.precision == "bf16":
        cast_parameters(model)


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor]) -> None:
    """Give every rank rank 0's content, as DDP does when it wraps a model. Collective.
    ``tensors``: of equal shapes, dtypes and devices on all ranks."""
    if dist.is_initialized():
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
