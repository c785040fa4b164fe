"""Exact routing: a micro-batch's backward reaches what its route permits, and nothing else.

Rows of one route stream form a micro-batch, and while it runs exactly the permitted parameters
require grad. So autograd itself does the masking, before rows are summed. A parameter outside the
route gets no gradient, not a zero one. Backward ends below the lowest permitted layer. On its way
it still carries input gradients through layers that the route leaves out.

A weight w ≠ 1 scales the micro-batch's gradient in a leaf hook, before it is
added to others. It scales the numerator only: N_l counts every loss target with
w > 0 alike.

Invariants: what required grad before requires grad after, also when the forward
raises. A parameter that the user froze stays frozen whatever the route says. No
buffer changes in between: what a class leaves in a buffer, other classes read.

A forward has rows of one route. Layers that mix rows (batch statistics) are refused by name, and so
are activation checkpointing that loses gradients, and gradients in float16.

Source: Cloud et al. 2024, "Gradient Routing: Masking Gradients to Localize
Computation in Neural Networks", for the idea; the mechanism is autograd's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import Tensor, nn

from govray.engine.gradients.precision import operations
from govray.errors import Refused

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


@contextmanager
def permitted(
    parameters: Mapping[str, nn.Parameter], weights: Mapping[str, float]
) -> Iterator[None]:
    """Inside, exactly the parameters in ``weights`` require grad, each scaled by its weight."""
    before = {name: parameter.requires_grad for name, parameter in parameters.items()}
    hooks = []
    try:
        for name, parameter in parameters.items():
            if parameter.requires_grad != (name in weights):  # setting it costs more than reading
                parameter.requires_grad_(name in weights)
        for name, weight in weights.items():
            if weight != 1.0:
                hooks.append(parameters[name].register_hook(_scale(weight)))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for name, parameter in parameters.items():
            if parameter.requires_grad != before[name]:
                parameter.requires_grad_(before[name])


@contextmanager
def unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Refuse a forward that writes into a buffer."""
    before = [(*found, found[-1]._version) for found in _buffers(model)]
    yield
    for module, name, buffer, version in before:
        if buffer._version != version:
            fqn = next(fqn for fqn, each in model.named_modules() if each is module)
            raise Refused(
                f"the forward pass changed buffer {fqn}{'.' if fqn else ''}{name}",
                where="model",
                do="State that one class writes and another reads can't be routed: "
                "switch its updates off, or use a layer without running state",
            )


def _buffers(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Module, local name and tensor of each buffer. ``named_buffers`` would put together the name
    of every module, in every pass, which takes longer than the rest of what is looked at."""
    seen, left = set[nn.Module](), [model]
    while left:
        module = left.pop()
        if module in seen:
            continue
        seen.add(module)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield module, name, buffer
        left += [child for child in reversed(module._modules.values()) if child is not None]


@contextmanager
def lost_gradients_refused() -> Iterator[None]:
    """Refuse reentrant activation checkpointing where it loses gradients. It drops those of a block
    whose input needs none, as the input of the lowest permitted block does, and only warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="None of the inputs have requires_grad=True")
        try:
            yield
        except UserWarning as warning:
            raise Refused(
                "reentrant activation checkpointing loses the gradients of the lowest "
                "block that a route permits",
                where="model",
                do="Pass use_reentrant=False to torch.utils.checkpoint",
            ) from warning


def refuse_inexact(model: nn.Module) -> None:
    """Refuse modules with which no routing of gradients is exact.

    Raises:
        Refused: Names the module or parameter. Refused are

            * batch normalisation in training mode or without statistics of its own;
            * any norm that writes running statistics;
            * embeddings with sparse gradients, ``max_norm`` or ``scale_grad_by_freq``;
            * parameters in float16.
    """
    for fqn, parameter in model.named_parameters():
        if parameter.dtype is torch.float16 and parameter.requires_grad:
            _refuse_float16(fqn)
    for fqn, module in model.named_modules():
        running = getattr(module, "track_running_stats", False)
        if module.training and (running or isinstance(module, _BATCH_NORMS)):
            raise Refused(
                f"{type(module).__name__} in training mode normalises by statistics of other rows",
                where=fqn,
                do="Replace it with nn.GroupNorm, or put it into eval() mode for good, where it "
                "uses the running statistics that it has",
            )
        if isinstance(module, _BATCH_NORMS) and module.running_mean is None:
            raise Refused(
                f"{type(module).__name__} without running statistics normalises by those of "
                "other rows, in eval() mode too",
                where=fqn,
                do="Replace it with nn.GroupNorm",
            )
        if isinstance(module, _EMBEDDINGS):
            for found, what, do in (
                (module.sparse, "sparse gradients can't be summed in buckets", "sparse=False"),
                (
                    module.max_norm is not None,
                    "max_norm rewrites the rows that a forward looks up, whatever the route "
                    "permits",
                    "max_norm=None",
                ),
                (
                    module.scale_grad_by_freq,
                    "scale_grad_by_freq divides a row's gradient by how often other rows use "
                    "its tokens",
                    "scale_grad_by_freq=False",
                ),
            ):
                if found:
                    raise Refused(what, where=fqn, do=f"Build the embedding with {do}")


def refuse_float16(losses: Tensor) -> None:
    """Let backward stop where a gradient in float16 arrives.
    Raises ``Refused``: later, in backward."""
    for node in operations([losses]):
        node.register_prehook(_float16_refused)


def _float16_refused(gradients: Sequence[Tensor | None]) -> None:
    if any(gradient is not None and gradient.dtype is torch.float16 for gradient in gradients):
        _refuse_float16("backward")


def _refuse_float16(where: str) -> NoReturn:
    raise Refused(
        "gradients in float16 vanish without loss scaling, and a scale that adapts would "
        "couple domains: one's overflow would change what the others learn",
        where=where,
        do="Use bfloat16, for autocast or for the parameters",
    )


def _scale(weight: float) -> Callable[[Tensor | None], Tensor | None]:
    def scaled(gradient: Tensor | None) -> Tensor | None:
        return None if gradient is None else gradient * weight  # none comes by a bare edge

    return scaled
