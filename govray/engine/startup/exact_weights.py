"""A trial's own weights: the run's in a finer dtype, or others that are drawn.

What couples rows may lie below the rounding of bfloat16, or act on no loss yet, as below a head of
zeros. So a trial of rows computes in float32 at least. And it computes with drawn weights too,
whose shares in the loss are all alike.

Invariant: no tensor of the run is written. Others take the places of parameters in the modules, and
leave them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from govray.engine.gradients.forward import Forward

Make = Callable[[Tensor], Tensor]
"""What stands in for a tensor: itself, or another of its shape and device."""


def in_dtype(dtype: torch.dtype) -> Make:
    """Tensors of floating point in this dtype, unless theirs is finer."""

    def make(tensor: Tensor) -> Tensor:
        coarser = tensor.is_floating_point() and tensor.element_size() < dtype.itemsize
        return tensor.detach().to(dtype) if coarser else tensor

    return make


def drawn(dtype: torch.dtype) -> Make:
    """Uniform weights of at least this dtype, with the variance of one by their inputs. What has
    one dimension moves by a tenth of one. The same ones in every process, and from no generator of
    the run."""
    generators: dict[torch.device, torch.Generator] = {}
    widen = in_dtype(dtype)

    def make(tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() and isinstance(tensor, nn.Parameter)):
            return widen(tensor)
        if tensor.device not in generators:
            generators[tensor.device] = torch.Generator(tensor.device).manual_seed(0)
        value = widen(tensor)
        bound = 0.1 if tensor.dim() < 2 else (3.0 / tensor[0].numel()) ** 0.5
        noise = torch.empty_like(value, requires_grad=False)
        noise.uniform_(-bound, bound, generator=generators[tensor.device])
        return noise.add_(value.detach()) if tensor.dim() < 2 else noise

    return make


@contextmanager
def other_weights(
    model: nn.Module, forward: Forward, adapter: str | None, make: Make
) -> Iterator[Forward]:
    """Inside, the model and one adapter have other weights, and the forward is over them."""
    others: dict[int, nn.Parameter] = {}
    held: list[tuple[nn.Module, str, nn.Parameter]] = []
    buffers: list[tuple[dict[str, Tensor | None], str, Tensor, Tensor]] = []

    def stand_in(parameter: nn.Parameter) -> nn.Parameter:
        if id(parameter) not in others:
            made = make(parameter)
            if made is not parameter:
                made = nn.Parameter(made, requires_grad=parameter.requires_grad)
            others[id(parameter)] = made
        return others[id(parameter)]

    with ExitStack() as stack:
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and stand_in(parameter) is not parameter:
                    held.append((module, name, parameter))
            for name, buffer in module._buffers.items():
                if buffer is not None and (other := make(buffer)) is not buffer:
                    buffers.append((module._buffers, name, buffer, other))
        if adapter is not None:
            stack.enter_context(forward.adapters.replaced(adapter, stand_in))
        try:
            # By `setattr`, for a module may note it elsewhere, as torch's recurrent ones do.
            for module, name, parameter in held:
                setattr(module, name, others[id(parameter)])
            for where, name, _, other in buffers:
                where[name] = other
            yield forward.exact(others)
        finally:
            for module, name, parameter in held:
                setattr(module, name, parameter)
            for where, name, buffer, _ in buffers:
                where[name] = buffer
