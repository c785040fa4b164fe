"""Which layers of a model are covered: their gradients by rows are known exactly.

A layer is known by its class. With tensors, hooks or a forward of its own it is not covered: its
derivatives may be others than those of ``layer_derivatives.py``.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from govray.engine.gradients.layer_derivatives import (
    CALCULI,
    RECOMPUTED,
    TRANSPOSED_LINEAR,
    BackwardRows,
    Calculus,
)
from govray.errors import UsageError

_HARMLESS_HOOKS = ("govray.engine.", "torch.distributed.")
"""Hooks that add to a layer's output or gather its parameters, but compute nothing with them."""


def calculus_of(layer: nn.Module) -> Calculus | None:
    """How to differentiate a layer on slices of rows; None if it is not known exactly."""
    cls = type(layer)
    if issubclass(cls, FSDPModule):
        cls = cls.__mro__[2]  # fully_shard puts its own class and FSDPModule in front
    if not layer._parameters.keys() <= {"weight", "bias"}:
        return None
    kind = CALCULI.get(cls)
    if kind is None and cls.__module__.startswith("transformers."):
        kind = _hf_kind(layer, cls.__name__)
    if isinstance(layer, nn.Embedding) and (
        layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    ):
        return None
    return kind


def _hf_kind(layer: nn.Module, name: str) -> Calculus | None:
    """Layers of Hugging Face's transformers, known by class name and parameters.

    ``Conv1D`` is GPT-2's linear layer, its weight transposed. ``LlamaRMSNorm`` and
    its kin normalise over the last dimension and scale by a vector.
    """
    shapes = {n: tuple(p.shape) for n, p in layer._parameters.items() if p is not None}
    if name == "Conv1D" and shapes == {"weight": (layer.nx, layer.nf), "bias": (layer.nf,)}:
        return TRANSPOSED_LINEAR
    alone = not layer._buffers and not layer._modules and list(shapes) == ["weight"]
    if name.endswith("RMSNorm") and alone and len(shapes["weight"]) == 1:
        return RECOMPUTED
    return None


def _altered(layer: nn.Module) -> bool:
    """Whether something may change what the layer computes: hooks, or a forward of its own."""
    hooks = (
        *layer._forward_pre_hooks.values(),
        *layer._forward_hooks.values(),
        *layer._backward_pre_hooks.values(),
        *layer._backward_hooks.values(),
    )
    return "forward" in layer.__dict__ or any(
        not (getattr(hook, "__module__", None) or "").startswith(_HARMLESS_HOOKS) for hook in hooks
    )


def covered(layer: nn.Module) -> bool:
    """Whether the gradients of a layer by rows are known exactly."""
    return calculus_of(layer) is not None and not _altered(layer)


def uncovered(model: nn.Module) -> tuple[str, ...]:
    """FQNs of modules that hold parameters and that no Function differentiates by rows.

    Subclasses of known layers count, and so do layers with hooks, parametrizations
    or a forward of their own, for they may compute something else. Parameters of
    these modules can be permitted to all rows of a pass, or to none.
    """
    return tuple(
        fqn
        for fqn, module in model.named_modules()
        if any(p is not None for p in module._parameters.values()) and not covered(module)
    )


def takes_rows(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether a covered layer's input has a dimension of rows before those that the layer needs."""
    kind = calculus_of(layer)
    return kind is not None and inputs.dim() >= kind.dimensions(layer)


def parameter_gradients(
    layer: nn.Module,
    inputs: Tensor,
    grad_output: Tensor,
    names: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """The gradients of a covered layer's parameters from one call on some rows.

    A pure function: nothing is written into ``.grad``.

    Args:
        inputs: What the layer was called with, (rows, …), on the layer's device.
        grad_output: The gradient of its output, (rows, …), of a floating dtype.
        names: Local names of the parameters; None for all.

    Returns:
        Local parameter name → gradient of the parameter's shape, in the kernel's dtype.
    """
    kind = calculus_of(layer)
    if kind is None:
        raise UsageError(f"no gradient by rows for {type(layer).__name__}", where="layer")
    with torch.no_grad():
        parameters = {n: None if p is None else p.detach() for n, p in layer._parameters.items()}
        wanted = [
            name
            for name, parameter in parameters.items()
            if parameter is not None and (names is None or name in names)
        ]
        read = kind.reads(wanted)
        parameters = {n: p if n in read else None for n, p in parameters.items()}
        inputs, _ = kind.prepare(layer, inputs, {})
        if inputs.is_floating_point():  # the forward may have cast it
            inputs = inputs.to(grad_output.dtype)
        statistics = kind.statistics(layer, inputs, parameters)
        return kind.backward(
            layer, BackwardRows(inputs, statistics, parameters, grad_output, wanted)
        )
