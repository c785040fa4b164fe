"""One forward over rows of several route streams, and the backward that each row is permitted.

Inside ``sliced`` the rows of a pass (first dimension of every layer's input) may have different
permissions. The layers compute their ordinary output over all rows in one kernel. In backward,
their autograd Function takes each parameter's gradient from the permitted rows only. It takes the
input gradient only for rows that have something permitted below. Work that the policy forbids is
not masked afterwards: it is not done.

Invariants:

* It is exact for any permission of any row, as long as rows do not mix on the way. The result is
  the weighted sum of the permitted rows' gradients, up to the order of summation.
* Where every row is permitted with weight 1, and every input gradient is needed,
  the layer's own forward runs: bit for bit plain training.
* A parameter without a permitted row gets no gradient, not a zero one. Its edge
  in the graph stays, so reducers that wait for each parameter (DDP) still hear of it.
* Only what plain autograd would save is saved, as views. An input that no gradient reads is not
  saved, and no row is copied.
* A restricted parameter learns through the forward of covered layers alone. Any
  other use of it (``F.linear(x, embedding.weight)``) would let all rows in, so
  backward refuses it by name.
* Parameters, hooks, FQNs and ``state_dict`` are those of the plain model, and the
  layers' forward is restored on the way out, also after an error.

The layers' ``forward`` is overridden on the instance. So their hooks (adapters, FSDP) run as ever,
and code that calls layers needs no change. Activation checkpointing recomputes through the
override, in whichever thread backward runs. A
``TorchFunctionMode`` belongs to one thread and does not know the layer; replaced
modules would not be those that FSDP and others hold.

Parameters of unknown layers (``uncovered``) must be permitted to all rows or to none. Rows that a
layer mixes are not noticed here: ``routing.refuse_inexact`` knows the usual layers. There are no
second derivatives.

Source: the layers' derivatives are torch's own (Core ATen operators). Slicing instead of masking is
the idea of sparse backward passes, e.g. Sun et al. 2017, "meProp".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.hooks import RemovableHandle

from govray.engine.gradients.layer_coverage import calculus_of, covered
from govray.engine.gradients.layer_derivatives import BackwardRows, Calculus, Parameters
from govray.engine.gradients.row_weights import INPUT, LayerRows, Ranges, RowWeights, layer_rows
from govray.errors import Refused, UsageError


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
                do="Call the layer instead of reading its tensor, or use aggregator: governed",
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
    """What the layers of one pass share."""

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
    kind: Calculus
    permissions: Mapping[str, RowWeights]  # by local parameter name
    flow: Ranges

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
                do="Keep rows in the first dimension, or use aggregator: governed",
            )
        entered: Parameters = {
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

    def pieces(self, needed: Collection[str]) -> tuple[LayerRows, ...]:
        """Who learns from which rows, as far as autograd needs it."""
        named = tuple(
            (name, self.permissions[name].weights) for name in self.permissions if name in needed
        )
        return layer_rows(named, self.flow if INPUT in needed else ())


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
        # No view: what a model then does in place, a view made in here would refuse.
        return cast(Tensor, torch.ops.aten._unsafe_view(output, output.shape))

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
    pieces: Sequence[LayerRows],
    inputs: Tensor,
    statistics: Sequence[Tensor],
    parameters: Parameters,
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
        asked = BackwardRows(
            inputs[at],
            tuple(statistic[at] for statistic in statistics),
            parameters,
            grad_output[at],
            piece.wanted,
            out,
        )
        gradients = call.kind.backward(call.layer, asked)
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


def _gaps(pieces: Sequence[LayerRows], rows: int) -> Iterator[tuple[int, int]]:
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
        Refused: A parameter that requires grad has no entry, or an entry no parameter. The names of
            a tied tensor disagree. A module that no Function covers holds a parameter that only
            some rows may train. Inside, a layer's input has another first dimension than ``rows``,
            a restricted parameter is used outside its layer, or backward runs after the context.
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
            calculus = calculus_of(module) if covered(module) else None
            if calculus is None:
                frozen += _freeze(module, fqn, {name: own[name] for name in restricted})
                continue
            flow = _union(permitted.get(f"{fqn}.{name}", given).flow for name, given in own.items())
            if not own or (not restricted and flow == ((0, rows),)):
                continue
            for name in restricted:
                if module._parameters[name].requires_grad:
                    run.watch(f"{fqn}.{name}", module._parameters[name])
            module.__dict__["forward"] = _Sliced(run, fqn, module, calculus, own, flow)
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
        if parameter is None or not parameter.requires_grad:
            continue
        if given.weights:
            raise Refused(
                f"only some rows may train {name} of this {type(module).__name__}, "
                "and its gradient can't be taken by rows",
                where=fqn or type(module).__name__,
                do="Use aggregator: governed",
            )
        parameter.requires_grad_(False)
        yield parameter


def _union(flows: Iterable[Ranges]) -> Ranges:
    """Maximal ranges that cover what any of these does."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(each for flow in flows for each in flow):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return tuple(merged)
