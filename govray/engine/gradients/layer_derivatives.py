"""What covered layers compute, and their gradients from any slice of rows.

Each type of layer has a calculus: its forward, and the gradients of its parameters
and its input from some of its rows. ``sliced_pass.py`` runs them in autograd Functions,
``norm_accounting.py`` asks them what a corpus contributed.

Invariant: rows are the first dimension throughout, and are never mixed.

There are no second derivatives.

Source: the derivatives are torch's own (Core ATen operators).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.gradients.row_weights import INPUT

_ATEN = torch.ops.aten


Parameters = Mapping[str, Any]
"""Local name → tensor, or None where the layer has none or nobody reads it."""

Prepared = tuple[Tensor, Parameters]


@dataclass(frozen=True, slots=True, eq=False)
class BackwardRows:
    """Some rows of one call of a layer, and which gradients they are asked for.

    What `Calculus.reads` leaves out need not be there: ``inputs`` may be a tensor of the right
    shape without content, parameters None.

    Attributes:
        inputs: What the kernel got, (rows, ...).
        statistics: Of these rows, as `Calculus.forward` gave them.
        grad_output: The gradient of the output, (rows, ...).
        wanted: Names among ``INPUT`` and the parameters.
        out: Memory that the input gradient may use.
    """

    inputs: Tensor
    statistics: tuple[Tensor, ...]
    parameters: Parameters
    grad_output: Tensor
    wanted: Collection[str]
    out: Tensor | None = None


class Calculus(Protocol):
    """The calculus of one type of layer, without state.

    Tensors are on the layer's device. Inputs and outputs are (rows, …), of a floating dtype; an
    embedding's inputs are integer ids. Gradients have the shape of what they belong to.
    """

    def dimensions(self, layer: Any) -> int:
        """Fewest dimensions of an input whose first one can be rows."""

    def prepare(self, layer: Any, inputs: Tensor, parameters: Parameters) -> Prepared:
        """What autograd does by itself before the kernel: casts of autocast, padding."""

    def forward(
        self, layer: Any, inputs: Tensor, parameters: Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output, and statistics of each row that backward reads."""

    def statistics(self, layer: Any, inputs: Tensor, parameters: Parameters) -> tuple[Tensor, ...]:
        """Those of ``forward``, at no higher price than needed."""

    def reads(self, wanted: Collection[str]) -> set[str]:
        """``INPUT`` and the parameters on whose values the wanted gradients depend."""

    def backward(self, layer: Any, rows: BackwardRows) -> dict[str, Tensor]:
        """Name → gradient, for each name that is wanted of these rows."""


def _autocast(tensors: Sequence[Tensor | None], device_type: str, dtype: torch.dtype) -> list[Any]:
    """Cast as autocast does: floating point tensors of that device, doubles excepted."""
    return [
        tensor.to(dtype)
        if tensor is not None
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
        and tensor.device.type == device_type
        else tensor
        for tensor in tensors
    ]


class _Plain:
    """Kernels that autocast leaves alone, or that see it themselves."""

    def dimensions(self, layer: Any) -> int:
        return 2

    def prepare(self, layer: Any, inputs: Tensor, parameters: Parameters) -> Prepared:
        return inputs, parameters

    def statistics(self, layer: Any, inputs: Tensor, parameters: Parameters) -> tuple[Tensor, ...]:
        return ()


class _LowPrecision(_Plain):
    """Kernels that autocast runs in its lower dtype."""

    def prepare(self, layer: Any, inputs: Tensor, parameters: Parameters) -> Prepared:
        device = inputs.device.type
        if not torch.is_autocast_enabled(device):
            return inputs, parameters
        dtype = torch.get_autocast_dtype(device)
        inputs, *cast = _autocast([inputs, *parameters.values()], device, dtype)
        return inputs, dict(zip(parameters, cast, strict=True))

    def reads(self, wanted: Collection[str]) -> set[str]:
        # Bilinear: each one's gradient depends on the other.
        other = {INPUT: "weight", "weight": INPUT}
        return {other[name] for name in wanted if name in other}


class _Normalising(_Plain):
    """Kernels that autocast runs in float32 on CUDA, and whose derivatives read everything."""

    def prepare(self, layer: Any, inputs: Tensor, parameters: Parameters) -> Prepared:
        device = inputs.device.type
        if device != "cuda" or not torch.is_autocast_enabled(device):
            return inputs, parameters
        inputs, *cast = _autocast([inputs, *parameters.values()], device, torch.float32)
        return inputs, dict(zip(parameters, cast, strict=True))

    @abstractmethod
    def forward(
        self, layer: Any, inputs: Tensor, parameters: Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]: ...

    def statistics(self, layer: Any, inputs: Tensor, parameters: Parameters) -> tuple[Tensor, ...]:
        return self.forward(layer, inputs, parameters)[1]

    def reads(self, wanted: Collection[str]) -> set[str]:
        return {INPUT, "weight", "bias"} if wanted else set()


class _Linear(_LowPrecision):
    """``nn.Linear``: y = x Wᵀ + b. With ``transposed``, Hugging Face's ``Conv1D``: y = x W + b."""

    def __init__(self, *, transposed: bool) -> None:
        self._transposed = transposed

    def forward(
        self, layer: Any, inputs: Tensor, parameters: Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = parameters["weight"], parameters["bias"]
        if not self._transposed:
            return F.linear(inputs, weight, bias), ()
        flat = torch.addmm(bias, inputs.reshape(-1, inputs.shape[-1]), weight)
        return flat.view(*inputs.shape[:-1], flat.shape[-1]), ()

    def backward(self, layer: Any, rows: BackwardRows) -> dict[str, Tensor]:
        d_output = rows.grad_output.reshape(-1, rows.grad_output.shape[-1])
        gradients = {}
        if INPUT in rows.wanted:
            weight = rows.parameters["weight"]
            d_input = torch.mm(
                d_output,
                weight.t() if self._transposed else weight,
                out=None if rows.out is None else rows.out.view(-1, rows.out.shape[-1]),
            )
            gradients[INPUT] = d_input.view(rows.inputs.shape)
        if "weight" in rows.wanted:
            x = rows.inputs.reshape(-1, rows.inputs.shape[-1])
            left, right = (x, d_output) if self._transposed else (d_output, x)
            gradients["weight"] = torch.mm(left.t(), right)
        if "bias" in rows.wanted:
            gradients["bias"] = d_output.sum(0)
        return gradients


class _Embedding(_Plain):
    """``nn.Embedding``: ids in, rows of the table out."""

    def dimensions(self, layer: Any) -> int:
        return 1

    def forward(
        self, layer: Any, inputs: Tensor, parameters: Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return F.embedding(inputs, parameters["weight"], layer.padding_idx), ()

    def reads(self, wanted: Collection[str]) -> set[str]:
        return {INPUT} if "weight" in wanted else set()

    def backward(self, layer: Any, rows: BackwardRows) -> dict[str, Tensor]:
        if "weight" not in rows.wanted:
            return {}
        padding = -1 if layer.padding_idx is None else layer.padding_idx
        ids = layer.num_embeddings
        return {
            "weight": _ATEN.embedding_dense_backward(
                rows.grad_output, rows.inputs, ids, padding, False
            )
        }


class _LayerNorm(_Normalising):
    """``nn.LayerNorm``. Statistics: mean and reciprocal standard deviation."""

    def dimensions(self, layer: Any) -> int:
        return 1 + len(layer.normalized_shape)

    def forward(
        self, layer: Any, inputs: Tensor, parameters: Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, *statistics = torch.native_layer_norm(
            inputs, layer.normalized_shape, parameters["weight"], parameters["bias"], layer.eps
        )
        return output, tuple(statistics)

    def backward(self, layer: Any, rows: BackwardRows) -> dict[str, Tensor]:
        return _masked(
            rows.wanted,
            partial(
                _ATEN.native_layer_norm_backward,
                rows.grad_output,
                rows.inputs,
                layer.normalized_shape,
                *rows.statistics,
                rows.parameters["weight"],
                rows.parameters["bias"],
            ),
        )


class _GroupNorm(_Normalising):
    """``nn.GroupNorm``. Statistics: mean and reciprocal standard deviation of each group."""

    def _sizes(self, layer: Any, inputs: Tensor) -> tuple[int, int, int, int]:
        """Rows, channels, pixels and groups, as the kernels take them."""
        rows, channels, *pixels = inputs.shape
        return rows, channels, math.prod(pixels), layer.num_groups

    def forward(
        self, layer: Any, inputs: Tensor, parameters: Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, *statistics = torch.native_group_norm(
            inputs.contiguous(),
            parameters["weight"],
            parameters["bias"],
            *self._sizes(layer, inputs),
            layer.eps,
        )
        return output, tuple(statistics)

    def backward(self, layer: Any, rows: BackwardRows) -> dict[str, Tensor]:
        return _masked(
            rows.wanted,
            partial(
                _ATEN.native_group_norm_backward,
                rows.grad_output.contiguous(),
                rows.inputs.contiguous(),
                *rows.statistics,
                rows.parameters["weight"],
                *self._sizes(layer, rows.inputs),
            ),
        )


class _Convolution(_LowPrecision):
    """``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d``."""

    def dimensions(self, layer: Any) -> int:
        return 2 + len(layer.kernel_size)

    def prepare(self, layer: Any, inputs: Tensor, parameters: Parameters) -> Prepared:
        if self._pads_first(layer):
            mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
            inputs = F.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
        return super().prepare(layer, inputs, parameters)

    @staticmethod
    def _pads_first(layer: Any) -> bool:
        return layer.padding_mode != "zeros" or layer.padding == "same"

    @staticmethod
    def _shape(layer: Any) -> tuple[int, ...]:
        return layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size

    def _geometry(self, layer: Any) -> tuple[Any, ...]:
        """Stride to groups, as the kernels take them."""
        nowhere = (0,) * len(layer.kernel_size)
        inside = not self._pads_first(layer) and layer.padding != "valid"
        padding = layer.padding if inside else nowhere
        return layer.stride, padding, layer.dilation, False, nowhere, layer.groups

    def forward(
        self, layer: Any, inputs: Tensor, parameters: Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = parameters["weight"], parameters["bias"]
        return torch.convolution(inputs, weight, bias, *self._geometry(layer)), ()

    def backward(self, layer: Any, rows: BackwardRows) -> dict[str, Tensor]:
        weight = rows.parameters["weight"]
        if weight is None:  # only its shape is read then
            weight = rows.grad_output.new_empty(1).expand(self._shape(layer))
        return _masked(
            rows.wanted,
            partial(
                _ATEN.convolution_backward,
                rows.grad_output,
                rows.inputs,
                weight,
                [layer.out_channels],
                *self._geometry(layer),
            ),
        )


class _Recomputed(_Plain):
    """Any row-wise layer, differentiated by running its forward on the slice again.

    For cheap layers whose forward is several kernels: this keeps less memory than
    plain autograd, and the casts are those of the forward.
    """

    def dimensions(self, layer: Any) -> int:
        return 1 + layer.weight.dim()

    def forward(
        self, layer: Any, inputs: Tensor, parameters: Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return _plain_forward(_with_parameters(layer, parameters), inputs), ()

    def reads(self, wanted: Collection[str]) -> set[str]:
        return {INPUT, "weight", "bias"} if wanted else set()

    def backward(self, layer: Any, rows: BackwardRows) -> dict[str, Tensor]:
        with torch.enable_grad():
            leaves: dict[str, Any] = {
                name: None
                if tensor is None
                else tensor.detach().requires_grad_(name in rows.wanted)
                for name, tensor in {INPUT: rows.inputs, **rows.parameters}.items()
            }
            x = leaves.pop(INPUT)
            output = _plain_forward(_with_parameters(layer, leaves), x)
            sources = {**leaves, INPUT: x}
            return dict(
                zip(
                    rows.wanted,
                    torch.autograd.grad(
                        output, [sources[name] for name in rows.wanted], rows.grad_output
                    ),
                    strict=True,
                )
            )


def _masked(
    wanted: Collection[str], kernel: Callable[[list[bool]], Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Run a kernel that returns (input, weight, bias) gradients under an output mask."""
    names = (INPUT, "weight", "bias")
    gradients = kernel([name in wanted for name in names])
    return {
        name: gradient for name, gradient in zip(names, gradients, strict=True) if name in wanted
    }


def _with_parameters(layer: nn.Module, parameters: Parameters) -> nn.Module:
    """The layer with other tensors for parameters; the layer itself is untouched."""
    twin = object.__new__(type(layer))
    twin.__dict__.update(layer.__dict__)
    twin.__dict__["_parameters"] = dict(parameters)
    return twin


def _plain_forward(layer: nn.Module, inputs: Tensor) -> Tensor:
    """What the layer's class computes, whatever its instance has been told."""
    return type(layer).forward(layer, inputs)


TRANSPOSED_LINEAR: Calculus = _Linear(transposed=True)
RECOMPUTED: Calculus = _Recomputed()
CALCULI: Mapping[type, Calculus] = {
    nn.Linear: _Linear(transposed=False),
    nn.Embedding: _Embedding(),
    nn.LayerNorm: _LayerNorm(),
    nn.RMSNorm: RECOMPUTED,
    nn.GroupNorm: _GroupNorm(),
    nn.Conv1d: _Convolution(),
    nn.Conv2d: _Convolution(),
    nn.Conv3d: _Convolution(),
}
"""Of torch's own layers, by class; ``layer_coverage.py`` says which layers may use them."""
