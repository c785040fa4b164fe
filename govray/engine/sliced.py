"""One forward over rows of several route streams, and the backward that each row is permitted.

Inside ``sliced`` the rows of a pass (first dimension of every layer's input) may
have different permissions. The layers compute their ordinary output over all rows
in one kernel; in backward their autograd Function takes each parameter's gradient
from slices of the permitted rows only, and the input gradient only for rows that
have something permitted below. Work that the policy forbids is not masked
afterwards: it is not done.

Invariants:

* Exact for any permission of any row, as long as rows do not mix on the way: the
  result is the weighted sum of the permitted rows' gradients, up to the order of
  summation.
* Where every row is permitted with weight 1, and every input gradient is needed,
  the layer's own forward runs: bit for bit plain training.
* A parameter without a permitted row gets no gradient, not a zero one. Its edge
  in the graph stays, so reducers that wait for each parameter (DDP) still hear of it.
* What plain autograd would save is saved, as views, and nothing else; neither the
  input where no gradient reads it, nor a copy of any row.
* A restricted parameter learns through the forward of covered layers alone. Any
  other use of it (``F.linear(x, embedding.weight)``) would let all rows in, so
  backward refuses it by name.
* Parameters, hooks, FQNs and ``state_dict`` are those of the plain model, and the
  layers' forward is restored on the way out, also after an error.

The layers' ``forward`` is overridden on the instance. So their hooks (adapters, FSDP)
run as ever, activation checkpointing recomputes through the override in whichever
thread backward runs, and code that calls layers needs no change. A
``TorchFunctionMode`` belongs to one thread and does not know the layer; replaced
modules would not be those that FSDP and others hold.

What it does not do: decide which rows may do what; layers that it does not know
(``uncovered``: their parameters must be permitted to all rows or to none); tell
rows that mix from rows that don't (``routing.refuse_inexact`` knows the usual
suspects); second derivatives.

Source: the layers' derivatives are torch's own (Core ATen operators); the idea of
slicing instead of masking is that of sparse backward passes, e.g. Sun et al. 2017,
"meProp".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from govray.errors import Refused, UsageError

INPUT = "input"
"""The name of an input's gradient beside those of parameters."""

_ATEN = torch.ops.aten
_Ranges = tuple[tuple[int, int], ...]
_Value = TypeVar("_Value")


# What rows may do.


@dataclass(frozen=True)
class RowWeights:
    """Rows of a pass that a parameter learns from, and rows whose input gradient is needed.

    Attributes:
        weights: ``(start, stop, weight)``: rows ``[start, stop)`` contribute their
            gradient times weight > 0. Sorted and disjoint; adjacent ranges differ in weight.
        flow: ``(start, stop)``: rows for which the layer that holds the parameter must
            pass a gradient on to its input. Sorted, disjoint, not adjacent.

    Raises:
        UsageError: If ranges are not as said.
    """

    weights: tuple[tuple[int, int, float], ...]
    flow: _Ranges

    def __post_init__(self) -> None:
        weighted = self.weights
        flow = tuple((start, stop, 1.0) for start, stop in self.flow)
        for ranges in (weighted, flow):
            for start, stop, weight in ranges:
                if not (0 <= start < stop and 0.0 < weight < math.inf):
                    raise UsageError(
                        f"rows [{start}, {stop}) with weight {weight}",
                        where="RowWeights",
                        do="Give ranges with 0 <= start < stop and a finite weight above 0",
                    )
            for (_, stop, weight), (start, _, next_weight) in pairwise(ranges):
                if start < stop or (start == stop and weight == next_weight):
                    raise UsageError(
                        f"a range ends at row {stop} and the next starts at row {start}",
                        where="RowWeights",
                        do="Sort the ranges, and merge neighbours of equal weight",
                    )

    @classmethod
    def of(cls, weights: Sequence[float], flow: Sequence[bool]) -> RowWeights:
        """From the weight of each row (0: forbidden) and whether its input gradient is needed.

        Raises:
            UsageError: If a weight is negative or not finite.
        """
        return cls(
            tuple((start, stop, weight) for start, stop, weight in _runs(weights) if weight),
            tuple((start, stop) for start, stop, needed in _runs(flow) if needed),
        )

    def allows_all(self, rows: int) -> bool:
        """Whether every row is permitted with weight 1."""
        return self.weights == ((0, rows, 1.0),)

    @property
    def stop(self) -> int:
        """One past the last row that is named."""
        ends = [stop for _, stop, _ in self.weights[-1:]] + [stop for _, stop in self.flow[-1:]]
        return max(ends, default=0)


def _runs(values: Sequence[_Value]) -> Iterator[tuple[int, int, _Value]]:
    """Maximal ranges of equal values."""
    start = 0
    for stop in range(1, len(values) + 1):
        if stop == len(values) or values[stop] != values[start]:
            yield start, stop, values[start]
            start = stop


@dataclass(frozen=True)
class _Piece:
    """Rows of one layer's call that are all permitted the same.

    Attributes:
        weights: Local parameter name → weight, for those that learn from these rows.
        flows: Whether the input gradient of these rows is needed.
        wanted: Names of all gradients to compute on these rows.
    """

    start: int
    stop: int
    weights: tuple[tuple[str, float], ...]
    flows: bool
    wanted: tuple[str, ...]


@lru_cache(maxsize=4096)
def _pieces(
    named: tuple[tuple[str, tuple[tuple[int, int, float], ...]], ...], flow: _Ranges
) -> tuple[_Piece, ...]:
    """Cut the rows wherever a permission changes; rows that need nothing are in no piece."""
    ranges = [*flow, *(r[:2] for _, weights in named for r in weights)]
    cuts = sorted({edge for each in ranges for edge in each})
    pieces = []
    for start, stop in pairwise(cuts):
        learning = tuple(
            (name, weight)
            for name, weights in named
            for first, last, weight in weights
            if first <= start < last
        )
        flows = any(first <= start < last for first, last in flow)
        wanted = (*(name for name, _ in learning), *((INPUT,) if flows else ()))
        if wanted:
            pieces.append(_Piece(start, stop, learning, flows, wanted))
    return tuple(pieces)


# What a layer computes, and its derivatives on any slice of rows.

_Parameters = Mapping[str, Any]
"""Local name → tensor, or None where the layer has none or nobody reads it."""

_Prepared = tuple[Tensor, _Parameters]


class _Kind(Protocol):
    """The calculus of one type of layer. Stateless; rows are the first dimension throughout."""

    def dimensions(self, layer: Any) -> int:
        """Fewest dimensions of an input whose first one can be rows."""

    def prepare(self, layer: Any, inputs: Tensor, parameters: _Parameters) -> _Prepared:
        """What autograd does by itself before the kernel: casts of autocast, padding.

        Returns:
            The inputs and parameters that the kernel gets.
        """

    def forward(
        self, layer: Any, inputs: Tensor, parameters: _Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output, and statistics of each row that backward reads."""

    def statistics(self, layer: Any, inputs: Tensor, parameters: _Parameters) -> tuple[Tensor, ...]:
        """Those of ``forward``, at no higher price than needed."""

    def reads(self, wanted: Collection[str]) -> set[str]:
        """``INPUT`` and the parameters on whose values the wanted gradients depend."""

    def backward(
        self,
        layer: Any,
        inputs: Tensor,
        statistics: tuple[Tensor, ...],
        parameters: _Parameters,
        grad_output: Tensor,
        wanted: Collection[str],
        out: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Gradients of the wanted ones among ``INPUT`` and the parameters, of these rows.

        What ``reads`` leaves out need not be there: inputs may be a tensor of the
        right shape without content, parameters None. ``out`` offers memory for the
        input gradient.
        """


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

    def prepare(self, layer: Any, inputs: Tensor, parameters: _Parameters) -> _Prepared:
        return inputs, parameters

    def statistics(self, layer: Any, inputs: Tensor, parameters: _Parameters) -> tuple[Tensor, ...]:
        return ()


class _LowPrecision(_Plain):
    """Kernels that autocast runs in its lower dtype."""

    def prepare(self, layer: Any, inputs: Tensor, parameters: _Parameters) -> _Prepared:
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

    def prepare(self, layer: Any, inputs: Tensor, parameters: _Parameters) -> _Prepared:
        device = inputs.device.type
        if device != "cuda" or not torch.is_autocast_enabled(device):
            return inputs, parameters
        inputs, *cast = _autocast([inputs, *parameters.values()], device, torch.float32)
        return inputs, dict(zip(parameters, cast, strict=True))

    def statistics(self, layer: Any, inputs: Tensor, parameters: _Parameters) -> tuple[Tensor, ...]:
        return self.forward(layer, inputs, parameters)[1]

    def reads(self, wanted: Collection[str]) -> set[str]:
        return {INPUT, "weight", "bias"} if wanted else set()


class _Linear(_LowPrecision):
    """``nn.Linear``: y = x Wᵀ + b. With ``transposed``, Hugging Face's ``Conv1D``: y = x W + b."""

    def __init__(self, *, transposed: bool) -> None:
        self._transposed = transposed

    def forward(
        self, layer: Any, inputs: Tensor, parameters: _Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = parameters["weight"], parameters["bias"]
        if not self._transposed:
            return F.linear(inputs, weight, bias), ()
        flat = torch.addmm(bias, inputs.reshape(-1, inputs.shape[-1]), weight)
        return flat.view(*inputs.shape[:-1], -1), ()

    def backward(
        self,
        layer: Any,
        inputs: Tensor,
        statistics: tuple[Tensor, ...],
        parameters: _Parameters,
        grad_output: Tensor,
        wanted: Collection[str],
        out: Tensor | None = None,
    ) -> dict[str, Tensor]:
        d_output = grad_output.reshape(-1, grad_output.shape[-1])
        gradients = {}
        if INPUT in wanted:
            weight = parameters["weight"]
            d_input = torch.mm(
                d_output,
                weight.t() if self._transposed else weight,
                out=None if out is None else out.view(-1, out.shape[-1]),
            )
            gradients[INPUT] = d_input.view(inputs.shape)
        if "weight" in wanted:
            x = inputs.reshape(-1, inputs.shape[-1])
            left, right = (x, d_output) if self._transposed else (d_output, x)
            gradients["weight"] = torch.mm(left.t(), right)
        if "bias" in wanted:
            gradients["bias"] = d_output.sum(0)
        return gradients


class _Embedding(_Plain):
    """``nn.Embedding``: ids in, rows of the table out."""

    def dimensions(self, layer: Any) -> int:
        return 1

    def forward(
        self, layer: Any, inputs: Tensor, parameters: _Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return F.embedding(inputs, parameters["weight"], layer.padding_idx), ()

    def reads(self, wanted: Collection[str]) -> set[str]:
        return {INPUT} if "weight" in wanted else set()

    def backward(
        self,
        layer: Any,
        inputs: Tensor,
        statistics: tuple[Tensor, ...],
        parameters: _Parameters,
        grad_output: Tensor,
        wanted: Collection[str],
        out: Tensor | None = None,
    ) -> dict[str, Tensor]:
        if "weight" not in wanted:
            return {}
        padding = -1 if layer.padding_idx is None else layer.padding_idx
        ids = layer.num_embeddings
        return {"weight": _ATEN.embedding_dense_backward(grad_output, inputs, ids, padding, False)}


class _LayerNorm(_Normalising):
    """``nn.LayerNorm``. Statistics: mean and reciprocal standard deviation."""

    def dimensions(self, layer: Any) -> int:
        return 1 + len(layer.normalized_shape)

    def forward(
        self, layer: Any, inputs: Tensor, parameters: _Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, *statistics = torch.native_layer_norm(
            inputs, layer.normalized_shape, parameters["weight"], parameters["bias"], layer.eps
        )
        return output, tuple(statistics)

    def backward(
        self,
        layer: Any,
        inputs: Tensor,
        statistics: tuple[Tensor, ...],
        parameters: _Parameters,
        grad_output: Tensor,
        wanted: Collection[str],
        out: Tensor | None = None,
    ) -> dict[str, Tensor]:
        return _masked(
            wanted,
            partial(
                _ATEN.native_layer_norm_backward,
                grad_output,
                inputs,
                layer.normalized_shape,
                *statistics,
                parameters["weight"],
                parameters["bias"],
            ),
        )


class _GroupNorm(_Normalising):
    """``nn.GroupNorm``. Statistics: mean and reciprocal standard deviation of each group."""

    def _sizes(self, layer: Any, inputs: Tensor) -> tuple[int, int, int, int]:
        """Rows, channels, pixels and groups, as the kernels take them."""
        rows, channels, *pixels = inputs.shape
        return rows, channels, math.prod(pixels), layer.num_groups

    def forward(
        self, layer: Any, inputs: Tensor, parameters: _Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, *statistics = torch.native_group_norm(
            inputs.contiguous(),
            parameters["weight"],
            parameters["bias"],
            *self._sizes(layer, inputs),
            layer.eps,
        )
        return output, tuple(statistics)

    def backward(
        self,
        layer: Any,
        inputs: Tensor,
        statistics: tuple[Tensor, ...],
        parameters: _Parameters,
        grad_output: Tensor,
        wanted: Collection[str],
        out: Tensor | None = None,
    ) -> dict[str, Tensor]:
        return _masked(
            wanted,
            partial(
                _ATEN.native_group_norm_backward,
                grad_output.contiguous(),
                inputs.contiguous(),
                *statistics,
                parameters["weight"],
                *self._sizes(layer, inputs),
            ),
        )


class _Convolution(_LowPrecision):
    """``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d``."""

    def dimensions(self, layer: Any) -> int:
        return 2 + len(layer.kernel_size)

    def prepare(self, layer: Any, inputs: Tensor, parameters: _Parameters) -> _Prepared:
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
        self, layer: Any, inputs: Tensor, parameters: _Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = parameters["weight"], parameters["bias"]
        return torch.convolution(inputs, weight, bias, *self._geometry(layer)), ()

    def backward(
        self,
        layer: Any,
        inputs: Tensor,
        statistics: tuple[Tensor, ...],
        parameters: _Parameters,
        grad_output: Tensor,
        wanted: Collection[str],
        out: Tensor | None = None,
    ) -> dict[str, Tensor]:
        weight = parameters["weight"]
        if weight is None:  # only its shape is read then
            weight = grad_output.new_empty(1).expand(self._shape(layer))
        return _masked(
            wanted,
            partial(
                _ATEN.convolution_backward,
                grad_output,
                inputs,
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
        self, layer: Any, inputs: Tensor, parameters: _Parameters
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return _plain_forward(_with_parameters(layer, parameters), inputs), ()

    def reads(self, wanted: Collection[str]) -> set[str]:
        return {INPUT, "weight", "bias"} if wanted else set()

    def backward(
        self,
        layer: Any,
        inputs: Tensor,
        statistics: tuple[Tensor, ...],
        parameters: _Parameters,
        grad_output: Tensor,
        wanted: Collection[str],
        out: Tensor | None = None,
    ) -> dict[str, Tensor]:
        with torch.enable_grad():
            leaves = {
                name: None if tensor is None else tensor.detach().requires_grad_(name in wanted)
                for name, tensor in {INPUT: inputs, **parameters}.items()
            }
            x = leaves.pop(INPUT)
            output = _plain_forward(_with_parameters(layer, leaves), x)
            sources = {**leaves, INPUT: x}
            return dict(
                zip(
                    wanted,
                    torch.autograd.grad(output, [sources[name] for name in wanted], grad_output),
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


def _with_parameters(layer: nn.Module, parameters: _Parameters) -> nn.Module:
    """The layer with other tensors for parameters; the layer itself is untouched."""
    twin = object.__new__(type(layer))
    twin.__dict__.update(layer.__dict__)
    twin.__dict__["_parameters"] = dict(parameters)
    return twin


def _plain_forward(layer: nn.Module, inputs: Tensor) -> Tensor:
    """What the layer's class computes, whatever its instance has been told."""
    return type(layer).forward(layer, inputs)


# Which layers are known.

_HF_CONV1D = _Linear(transposed=True)
_RECOMPUTED = _Recomputed()
_KINDS: Mapping[type, _Kind] = {
    nn.Linear: _Linear(transposed=False),
    nn.Embedding: _Embedding(),
    nn.LayerNorm: _LayerNorm(),
    nn.RMSNorm: _RECOMPUTED,
    nn.GroupNorm: _GroupNorm(),
    nn.Conv1d: _Convolution(),
    nn.Conv2d: _Convolution(),
    nn.Conv3d: _Convolution(),
}

_HARMLESS_HOOKS = ("govray.engine.", "torch.distributed.")
"""Hooks that add to a layer's output or gather its parameters, but compute nothing with them."""


def _kind(layer: nn.Module) -> _Kind | None:
    """How to differentiate a layer on slices of rows; None if it is not known exactly."""
    cls = type(layer)
    if issubclass(cls, FSDPModule):
        cls = cls.__mro__[2]  # fully_shard puts its own class and FSDPModule in front
    if not layer._parameters.keys() <= {"weight", "bias"}:
        return None
    kind = _KINDS.get(cls)
    if kind is None and cls.__module__.startswith("transformers."):
        kind = _hf_kind(layer, cls.__name__)
    if isinstance(layer, nn.Embedding) and (
        layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    ):
        return None
    return kind


def _hf_kind(layer: nn.Module, name: str) -> _Kind | None:
    """Layers of Hugging Face's transformers, known by class name and parameters.

    ``Conv1D`` is GPT-2's linear layer, its weight transposed. ``LlamaRMSNorm`` and
    its kin normalise over the last dimension and scale by a vector.
    """
    shapes = {n: tuple(p.shape) for n, p in layer._parameters.items() if p is not None}
    if name == "Conv1D" and shapes == {"weight": (layer.nx, layer.nf), "bias": (layer.nf,)}:
        return _HF_CONV1D
    alone = not layer._buffers and not layer._modules and list(shapes) == ["weight"]
    if name.endswith("RMSNorm") and alone and len(shapes["weight"]) == 1:
        return _RECOMPUTED
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


def _covered(layer: nn.Module) -> bool:
    return _kind(layer) is not None and not _altered(layer)


def uncovered(model: nn.Module) -> tuple[str, ...]:
    """FQNs of modules that hold parameters and that no Function differentiates by rows.

    Subclasses of known layers count, and so do layers with hooks, parametrizations
    or a forward of their own, for they may compute something else. Parameters of
    these modules can be permitted to all rows of a pass, or to none.
    """
    return tuple(
        fqn
        for fqn, module in model.named_modules()
        if any(p is not None for p in module._parameters.values()) and not _covered(module)
    )


def takes_rows(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether a covered layer's input has room for rows before what the layer works on."""
    kind = _kind(layer)
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
        layer: Covered.
        inputs: What the layer was called with, (rows, ...).
        grad_output: The gradient of its output, (rows, ...).
        names: Local names of the parameters; None for all.

    Returns:
        Local parameter name → gradient, in the dtype that the kernel ran in.

    Raises:
        UsageError: If the layer is not covered.
    """
    kind = _kind(layer)
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
        return kind.backward(layer, inputs, statistics, parameters, grad_output, wanted)


# One pass: the override of each layer's forward, and the Functions behind it.


@dataclass(eq=False)
class _Use:
    """One restricted parameter in one pass, and whether the Functions account for its gradient."""

    fqn: str
    zeros: bool
    entrance: Tensor | None = None
    returned: Tensor | None = None

    def check(self, gradient: Tensor) -> None:
        """The parameter's hook: its gradient must be the very tensor that the entrance returned."""
        returned, self.returned = self.returned, None
        if gradient is not returned:
            raise Refused(
                f"parameter {self.fqn} is used outside its layer's forward, "
                "where rows that may not train it can't be kept apart",
                where="sliced",
                do="Call the layer instead of reading its tensor, or run the rows of "
                "each route by themselves",
            )


class _Entrance(torch.autograd.Function):
    """The one edge through which the Functions of a pass reach a restricted parameter."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, use: _Use) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.use = use
        ctx.shape = parameter.shape
        ctx.like = {"dtype": parameter.dtype, "device": parameter.device}
        return parameter.view_as(parameter)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        if gradient is None and ctx.use.zeros:
            gradient = torch.zeros(ctx.shape, **ctx.like)
        # Holding it also keeps autograd from adding another use's gradient into it.
        ctx.use.returned = gradient
        return gradient, None


class _Pass:
    """What the layers of one pass share.

    Attributes:
        rows: The first dimension of every sliced layer's input.
        open: Whether the context is still there.
    """

    def __init__(self, rows: int, zeros: bool) -> None:
        self.rows = rows
        self.open = True
        self._zeros = zeros
        self._uses: dict[int, tuple[Tensor, _Use]] = {}
        self._hooks: list[RemovableHandle] = []

    def watch(self, fqn: str, parameter: Tensor) -> _Use:
        """See that nothing but its entrance brings the parameter a gradient."""
        if id(parameter) not in self._uses:
            use = _Use(fqn, self._zeros)
            self._uses[id(parameter)] = parameter, use
            self._hooks.append(parameter.register_hook(use.check))
        return self._uses[id(parameter)][1]

    def enter(self, fqn: str, parameter: Tensor) -> Tensor:
        """The stand-in by which Functions use a restricted parameter."""
        if not parameter.requires_grad:
            return parameter
        use = self.watch(fqn, parameter)
        if use.entrance is None:
            # Reentrant checkpointing runs the first forward under no_grad.
            with torch.enable_grad():
                use.entrance = _Entrance.apply(parameter, use)
        return use.entrance

    def close(self) -> None:
        self.open = False
        for hook in self._hooks:
            hook.remove()
        self._uses.clear()


@dataclass(frozen=True, eq=False)
class _Sliced:
    """The override of one covered layer's forward in one pass."""

    run: _Pass
    fqn: str
    layer: nn.Module
    kind: _Kind
    permissions: Mapping[str, RowWeights]  # by local parameter name
    flow: _Ranges

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        # Under FSDP these are not the tensors that were there when the pass began.
        parameters = self.layer._parameters
        learning = {n: p for n, p in parameters.items() if p is not None and p.requires_grad}
        everything = all(self._allows_all(name) for name in learning)
        inputs = args[0] if args else next(iter(kwargs.values()))
        flows = self.flow == ((0, self.run.rows),) or not inputs.requires_grad
        if everything and flows:
            return type(self.layer).forward(self.layer, *args, **kwargs)
        if inputs.dim() < self.kind.dimensions(self.layer) or inputs.shape[0] != self.run.rows:
            raise Refused(
                f"{type(self.layer).__name__} got an input of shape {tuple(inputs.shape)} "
                f"in a pass of {self.run.rows} rows",
                where=self.fqn,
                do="Keep rows in the first dimension, or run the rows of each route by themselves",
            )
        entered: _Parameters = {
            name: parameter
            if name not in learning or self._allows_all(name)
            else self.run.enter(f"{self.fqn}.{name}", learning[name])
            for name, parameter in parameters.items()
        }
        inputs, entered = self.kind.prepare(self.layer, inputs, entered)
        return _SlicedFunction.apply(self, tuple(entered), inputs, *entered.values())

    def _allows_all(self, name: str) -> bool:
        given = self.permissions.get(name)
        return given is not None and given.allows_all(self.run.rows)

    def pieces(self, needed: Collection[str]) -> tuple[_Piece, ...]:
        """Who learns from which rows, as far as autograd needs it."""
        named = tuple(
            (name, self.permissions[name].weights) for name in self.permissions if name in needed
        )
        return _pieces(named, self.flow if INPUT in needed else ())


class _SlicedFunction(torch.autograd.Function):
    """A layer's kernel over all rows, its derivatives on slices of them."""

    @staticmethod
    def forward(
        ctx: Any, call: _Sliced, names: tuple[str, ...], inputs: Tensor, *tensors: Tensor | None
    ) -> Tensor:
        parameters = dict(zip(names, tensors, strict=True))
        output, statistics = call.kind.forward(call.layer, inputs, parameters)
        needed = [
            name
            for name, is_needed in zip((INPUT, *names), ctx.needs_input_grad[2:], strict=True)
            if is_needed
        ]
        pieces = call.pieces(needed)
        wanted = {name for piece in pieces for name in piece.wanted}
        read = call.kind.reads(wanted)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            inputs if INPUT in read else None,
            *(parameters[name] if name in read else None for name in names),
            *(statistics if wanted else ()),
        )
        ctx.call, ctx.names, ctx.pieces, ctx.shape = call, names, pieces, inputs.shape
        ctx.autocast = _autocast_state(inputs.device.type)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Sliced = ctx.call
        if not call.run.open:
            raise Refused(
                "backward of a sliced pass after its context was left",
                where=call.fqn,
                do="Run backward inside sliced(), where recomputation sees the same layers",
            )
        if grad_output is None or not ctx.pieces:
            return (None,) * (3 + len(ctx.names))
        inputs, *saved = ctx.saved_tensors
        parameters = dict(zip(ctx.names, saved, strict=False))
        statistics = saved[len(ctx.names) :]
        if inputs is None:
            inputs = grad_output.new_empty(1).expand(ctx.shape)
        with torch.autocast(**ctx.autocast):
            gradients = _backward(call, ctx.pieces, inputs, statistics, parameters, grad_output)
        return None, None, gradients.get(INPUT), *(gradients.get(name) for name in ctx.names)


def _backward(
    call: _Sliced,
    pieces: Sequence[_Piece],
    inputs: Tensor,
    statistics: Sequence[Tensor],
    parameters: _Parameters,
    grad_output: Tensor,
) -> dict[str, Tensor]:
    """Sum each piece's gradients by its weights; put input gradients where their rows are."""
    total: dict[str, Tensor] = {}
    rows = len(inputs)
    d_input = None
    whole = len(pieces) == 1 and (pieces[0].start, pieces[0].stop) == (0, rows)
    if not whole and any(piece.flows for piece in pieces):
        d_input = total[INPUT] = grad_output.new_empty(inputs.shape)
        for start, stop in _gaps(pieces, rows):
            d_input[start:stop].zero_()
    for piece in pieces:
        at = slice(piece.start, piece.stop)
        out = d_input[at] if piece.flows and d_input is not None else None
        gradients = call.kind.backward(
            call.layer,
            inputs[at],
            tuple(statistic[at] for statistic in statistics),
            parameters,
            grad_output[at],
            piece.wanted,
            out,
        )
        if piece.flows:
            given = gradients[INPUT]
            if out is None:
                total[INPUT] = given
            elif given.data_ptr() != out.data_ptr():
                out.copy_(given)
        for name, weight in piece.weights:
            if name in total:
                total[name].add_(gradients[name], alpha=weight)
            else:
                total[name] = gradients[name] if weight == 1.0 else gradients[name].mul_(weight)
    return total


def _gaps(pieces: Sequence[_Piece], rows: int) -> Iterator[tuple[int, int]]:
    """Maximal ranges of rows through which no gradient flows."""
    start = 0
    for piece in pieces:
        if piece.flows:
            if start < piece.start:
                yield start, piece.start
            start = piece.stop
    if start < rows:
        yield start, rows


def _autocast_state(device_type: str) -> dict[str, Any]:
    """Arguments that make ``torch.autocast`` what it is now."""
    return {
        "device_type": device_type,
        "dtype": torch.get_autocast_dtype(device_type),
        "enabled": torch.is_autocast_enabled(device_type),
    }


@contextmanager
def sliced(
    model: nn.Module, rows: int, permitted: Mapping[str, RowWeights], *, zeros: bool = False
) -> Iterator[None]:
    """Let every parameter learn from its permitted rows only, in forwards and backwards inside.

    Args:
        model: Its parameters' ``requires_grad`` is as it stays for the pass.
        rows: Of the pass: the first dimension of the input of every layer that has
            to tell rows apart.
        permitted: Parameter FQN → its rows. Parameters that don't require grad may
            be left out. A tied tensor may stand under any of its names; under several,
            ``flow`` is each layer's own and ``weights`` must agree. The flow of a
            layer is that of any of its parameters.
        zeros: Give a parameter without a permitted row a gradient of zeros, not none:
            for FSDP, which sums those that are there.

    Raises:
        Refused: A parameter that requires grad has no entry, or an entry no parameter;
            the names of a tied tensor disagree; a module that no Function covers holds
            a parameter that only some rows may train; inside, a layer's input has
            another first dimension than ``rows``, a restricted parameter is used
            outside its layer, or backward runs after the context.
        UsageError: A row range ends after ``rows``.
    """
    permissions = _by_parameter(model, rows, permitted)
    run = _Pass(rows, zeros)
    overridden: list[nn.Module] = []
    frozen: list[nn.Parameter] = []
    try:
        for fqn, module in model.named_modules():
            own = {
                name: permissions[parameter]
                for name, parameter in module._parameters.items()
                if parameter in permissions
            }
            restricted = [name for name in own if not own[name].allows_all(rows)]
            if not _covered(module):
                frozen += _freeze(module, fqn, {name: own[name] for name in restricted})
                continue
            flow = _union(permitted.get(f"{fqn}.{name}", given).flow for name, given in own.items())
            if not own or (not restricted and flow == ((0, rows),)):
                continue
            for name in restricted:
                if module._parameters[name].requires_grad:
                    run.watch(f"{fqn}.{name}", module._parameters[name])
            module.__dict__["forward"] = _Sliced(run, fqn, module, _kind(module), own, flow)
            overridden.append(module)
        yield
    finally:
        run.close()
        for module in overridden:
            del module.__dict__["forward"]
        for parameter in frozen:
            parameter.requires_grad_(True)


def _by_parameter(
    model: nn.Module, rows: int, permitted: Mapping[str, RowWeights]
) -> dict[nn.Parameter, RowWeights]:
    """One entry for each tensor that is named, after checking that all is in order."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    permissions: dict[nn.Parameter, RowWeights] = {}
    for fqn, given in permitted.items():
        if fqn not in parameters:
            raise Refused(
                f"rows are given for {fqn}, which the model lacks",
                where="sliced",
                do="Name parameters as model.named_parameters() does",
            )
        if given.stop > rows:
            raise UsageError(f"rows up to {given.stop} in a pass of {rows}", where=fqn)
        if permissions.setdefault(parameters[fqn], given).weights != given.weights:
            raise Refused(
                "its names give this tied tensor different rows",
                where=fqn,
                do="Give a tensor one permission: the intersection of those of its layer groups",
            )
    for fqn, parameter in parameters.items():
        if parameter.requires_grad and parameter not in permissions:
            raise Refused(
                "nothing says which rows may train this parameter",
                where=fqn,
                do="Give its rows, or freeze it with requires_grad_(False)",
            )
    return permissions


def _freeze(
    module: nn.Module, fqn: str, restricted: Mapping[str, RowWeights]
) -> Iterator[nn.Parameter]:
    """Freeze what no row may train; refuse what only some may, for nothing can tell them apart."""
    for name, given in restricted.items():
        parameter = module._parameters[name]
        if not parameter.requires_grad:
            continue
        if given.weights:
            raise Refused(
                f"only some rows may train {name} of this {type(module).__name__}, "
                "and its gradient can't be taken by rows",
                where=fqn or type(module).__name__,
                do="Run the rows of each route by themselves",
            )
        yield parameter.requires_grad_(False)


def _union(flows: Iterable[_Ranges]) -> _Ranges:
    """Maximal ranges that cover what any of these does."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(each for flow in flows for each in flow):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return tuple(merged)
