"""LoRA's two products, added to a layer's output.

    y  =  x Wᵀ + c + s · (x Aᵀ) Bᵀ

``added`` takes the layer's output as it is. ``adapted_linear`` computes all of it as one operation,
where W and c are constant. As two operations, autograd keeps and adds whole activations for two
thin products. It adds the adapter's output to the layer's, and in backward one input gradient to
the other. In one operation the second matrix product adds both.

Invariants: output and gradients of both are the same, bit for bit.

One operation covers ``nn.Linear`` only, without autocast, and learns neither W nor c.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", §4.1.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def learns(layer: nn.Module) -> bool:
    """Whether a parameter of this very module requires grad."""
    return any(p is not None and p.requires_grad for p in layer._parameters.values())


def fits(layer: nn.Module, inputs: Tensor, a: Tensor) -> bool:
    """Whether `adapted_linear` computes what this layer and its adapter would.
    ``a``: the adapter's, (rank, in), of any dtype."""
    return (
        type(layer) is nn.Linear
        and not learns(layer)
        and inputs.dtype == layer.weight.dtype == a.dtype
        and inputs.dim() > 1
        and not torch.is_autocast_enabled(inputs.device.type)
        and not torch.compiler.is_compiling()
    )


def added(output: Tensor, inputs: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """A layer's output with its adapter's; other arguments as for `adapted_linear`.

    Args:
        output: (…, out), of the dtype and device of the inputs. So is the result. Under FSDP2's
            mixed precision that is another dtype than the adapter's.
    """
    if a.dtype != inputs.dtype and not torch.is_autocast_enabled(inputs.device.type):
        a, b = a.to(inputs.dtype), b.to(inputs.dtype)
    low = F.linear(inputs, a).flatten(0, -2)
    return torch.addmm(output.flatten(0, -2), low, _by_row(b), alpha=scale).view(output.shape)


def adapted_linear(layer: nn.Linear, inputs: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """The output of a layer with its adapter.

    Args:
        layer: Its parameters don't require grad.
        inputs: (…, in), of the layer's dtype and on its device, as all tensors here.
        a: (rank, in).
        b: (out, rank).
        scale: s.

    Returns:
        (…, out).
    """
    output = _Adapted.apply(inputs, layer.weight, layer.bias, a, b, scale)
    return cast(Tensor, output)


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, w: Tensor, c: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        x = inputs.flatten(0, -2)
        low = F.linear(x, a)
        b_t = _by_row(b)
        y = F.linear(x, w, c).addmm_(low, b_t, alpha=scale)
        ctx.save_for_backward(x, w, a, b_t, low)
        ctx.scale, ctx.shape = scale, inputs.shape
        # No view: what a model then does in place, a view made in here would refuse.
        return cast(Tensor, torch.ops.aten._unsafe_view(y, (*inputs.shape[:-1], len(w))))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, w, a, b_t, low = ctx.saved_tensors
        d_y = grad_output.flatten(0, -2)
        d_low = F.linear(d_y, b_t).mul_(ctx.scale)
        d_b = (low.t() @ d_y).mul_(ctx.scale).t()
        d_a = d_low.t() @ x
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = (d_y @ w).addmm_(d_low, a).view(ctx.shape)
        return d_x, None, None, d_a, d_b, None


def _by_row(b: Tensor) -> Tensor:
    """Bᵀ row by row: both products of its backward are several times faster then."""
    return b.t().contiguous()
