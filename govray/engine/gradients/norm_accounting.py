"""Gradient-norm share: how much of a layer group's gradient each corpus contributed.

On a sampled step, a *piece* is the rows of one corpus in one pass on this rank. The piece alone
adds some gradient to a layer group's sum, route weight included, before any division by N_l. Its
squared norm counts. A corpus's share is the sum over its pieces, divided by that over all pieces.

How a parameter's pieces are told apart:

* Where one piece of a pass may train it, the gradient that autograd brings is the
  piece's. That needs no knowledge of the model.
* Where several may, each call of a covered layer gives the gradient of each piece's rows. It
  follows from the layer's input and its output's gradient
  (``layer_coverage.parameter_gradients``). Calls add up before the norm is taken.

Invariants:

* It observes. Hooks read detached tensors and return nothing, so every number of
  the training step is what it would be without.
* Never wrong, sooner absent: the pieces' gradients must add up to the gradient that autograd
  brings, within rounding. Else the layer group is not measured until the next ``squares``. Reasons
  are a position table read as a raw tensor, a custom layer, or a layer called on other than rows.
* A parameter's gradients are dropped as soon as autograd has brought the last one.

A norm is not influence: it does not tell what a corpus did to the model. FSDP's sharded parameters
are not measured. Rows are not told apart in a layer whose first dimension means
something else, with as many entries as the pass has rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.tensor import DTensor

from govray.engine.gradients.layer_coverage import parameter_gradients, takes_rows, uncovered
from govray.engine.model.adapters import ALPHA_PER_RANK, Adapters
from govray.errors import UsageError
from govray.governance.record.row_order import mix


@dataclass(frozen=True)
class Piece:
    """The rows of one corpus in one pass.

    Attributes:
        start, stop: Rows ``[start, stop)`` of the pass.
        weights: Name of a parameter that these rows may train → their route's weight, which
            multiplies their gradients after backward.
    """

    corpus: str
    start: int
    stop: int
    weights: Mapping[str, float]


class Accounting:
    """The sampled squared norms of one rank.

    Args:
        model: Hooks are on it only inside ``measuring``.
        group_of: Parameter name → layer group, adapters' parameters included.
        every: One step of so many is a sample, at least 1; step 0 is one.
        adapters: The model's adapters, if their groups are to be measured.
    """

    def __init__(
        self,
        model: nn.Module,
        group_of: Mapping[str, str],
        every: int = 50,
        *,
        adapters: Adapters | None = None,
    ) -> None:
        if every < 1:
            raise UsageError(
                f"every is {every}", where="accounting", do="Give a number of steps, at least 1"
            )
        self._every = every
        self._group_of = dict(group_of)
        self._parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        opaque = set(uncovered(model))
        names = {parameter: name for name, parameter in self._parameters.items()}
        # Whatever a module that isn't covered does with its parameters stays unexplained.
        self._layers = [
            _Layer(module, {local: names[p] for local, p in _own(module)})
            for fqn, module in model.named_modules()
            if fqn not in opaque and any(_own(module))
        ]
        if adapters is not None:
            self._parameters.update(adapters.named_parameters())
            self._add_adapters(model, adapters)
        self._squares: dict[tuple[str, str], Tensor] = {}
        self._unmeasured: set[str] = set()
        self._agrees: dict[str, list[Tensor]] = {}

    def due(self, step: int) -> bool:
        """Whether this step is a sample: one of every ``every`` steps, each time another. Not a
        fixed one: a stream that is read at every k-th step would be sampled always or never."""
        return step % self._every == mix(step // self._every) % self._every

    @contextmanager
    def measuring(self, pieces: Sequence[Piece]) -> Iterator[None]:
        """Measure the forward and backward of one pass.

        Enter it when ``requires_grad`` is as it stays for the pass.

        Args:
            pieces: Of the pass, in the order of its rows, without a gap.
        """
        self._check(pieces)
        tallies = {
            name: _Tally(pieces, name, self._parameters[name])
            for name in dict.fromkeys(name for piece in pieces for name in piece.weights)
            if self._parameters[name].requires_grad
        }
        contested = {name: tally for name, tally in tallies.items() if tally.contested}
        with ExitStack() as hooks:
            for name, tally in tallies.items():
                # FSDP computes with other tensors, and this one never hears of a gradient.
                tally.failed = isinstance(self._parameters[name], DTensor)
                # Not a hook of the tensor: those of others may come later and scale.
                hooks.callback(tally.node.register_prehook(tally.arrived).remove)
            for layer in self._layers:
                if mine := {n: contested[n] for n in layer.names if n in contested}:
                    hook = layer.module.register_forward_hook(
                        partial(_called, layer, pieces, mine), with_kwargs=True
                    )
                    hooks.callback(hook.remove)
            yield
        for name, tally in tallies.items():
            group = self._group_of[name]
            agrees = tally.measured()
            if agrees is None:
                self._unmeasured.add(group)
            else:
                self._agrees.setdefault(group, []).append(agrees)
            for index, square in tally.squares.items():
                key = pieces[index].corpus, group
                self._squares[key] = self._squares.get(key, 0.0) + square

    def squares(self) -> dict[tuple[str, str], Tensor]:
        """The sums since the last call, by (corpus, layer group).

        Each is of shape (), in float64, on the device, for nothing here waits for it. Groups that
        are known not to be measured are absent. Those that the device alone knows of are NaN.
        """
        agrees = {group: torch.stack(each).all() for group, each in self._agrees.items()}
        taken = {
            key: square.where(agrees[key[1]], math.nan)
            for key, square in self._squares.items()
            if key[1] not in self._unmeasured
        }
        self._squares.clear()
        self._unmeasured.clear()
        self._agrees.clear()
        return taken

    def _add_adapters(self, model: nn.Module, adapters: Adapters) -> None:
        by_module = {layer.module: layer for layer in self._layers}
        for name, _ in adapters.named_parameters():
            if name.endswith(_LORA_A):
                stem = name.removesuffix(_LORA_A)
                module = model.get_submodule(stem.partition("/")[2])
                if module in by_module:
                    by_module[module].adapters[stem + _LORA_A, stem + _LORA_B] = (
                        self._parameters[stem + _LORA_A],
                        self._parameters[stem + _LORA_B],
                    )

    def _check(self, pieces: Sequence[Piece]) -> None:
        end = 0
        for piece in pieces:
            if not piece.start == end < piece.stop:
                raise UsageError(
                    f"rows [{piece.start}, {piece.stop}) of {piece.corpus} follow row {end}",
                    where="accounting",
                    do="Give all rows of the pass, in order",
                )
            end = piece.stop
            for name in piece.weights:
                if name not in self._group_of or name not in self._parameters:
                    raise UsageError(f"{name} is in no layer group", where="accounting")


_LORA_A, _LORA_B = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True, eq=False)
class _Layer:
    """A covered layer.
    ``adapters``: names of A and B → the tensors, for each adapter of the layer."""

    module: nn.Module
    parameters: Mapping[str, str]
    adapters: dict[tuple[str, str], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors that a call of the layer reads."""
        return (*self.parameters.values(), *(name for pair in self.adapters for name in pair))

    def gradients(
        self, inputs: Tensor, grad_output: Tensor, wanted: Collection[str]
    ) -> dict[str, Tensor]:
        """Of the wanted tensors, by name, from one call on some rows."""
        locals_ = [local for local, name in self.parameters.items() if name in wanted]
        found = {}
        if locals_:
            own = parameter_gradients(self.module, inputs, grad_output, locals_)
            found = {self.parameters[local]: gradient for local, gradient in own.items()}
        for (a_name, b_name), (a, b) in self.adapters.items():
            if a_name in wanted or b_name in wanted:
                found[a_name], found[b_name] = _lora_gradients(inputs, grad_output, a, b)
        return found


def _lora_gradients(
    inputs: Tensor, grad_output: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of A and B, where y = … + scale · (x Aᵀ) Bᵀ."""
    x = inputs.flatten(0, -2).to(grad_output.dtype)
    d_output = ALPHA_PER_RANK * grad_output.flatten(0, -2)
    a, b = a.detach().to(x.dtype), b.detach().to(x.dtype)
    return (d_output @ b).t() @ x, d_output.t() @ (x @ a.t())


class _Tally:
    """What is known of one parameter in one pass.

    Attributes:
        weights: Index of each piece that may train the parameter → its weight.
        squares: Index → squared norm of what the piece contributed.
        calls: How often covered layers used it.
        node: Its end of the graph, which would go, and our hook with it, if nobody held it.
    """

    def __init__(self, pieces: Sequence[Piece], name: str, parameter: Tensor) -> None:
        self.weights = {i: p.weights[name] for i, p in enumerate(pieces) if name in p.weights}
        self.squares: dict[int, Tensor] = {}
        self.calls = 0
        self.node = get_gradient_edge(parameter).node
        self.failed = False
        self._arrivals = 0
        self._sums: dict[int, Tensor] = {}
        self._total: Tensor | None = None
        self._error: Tensor | None = None
        self._yes = torch.ones((), dtype=torch.bool, device=parameter.device)
        self._bound: Tensor | None = None

    @property
    def contested(self) -> bool:
        """Whether several pieces may train the parameter."""
        return len(self.weights) > 1

    def add(self, index: int, gradient: Tensor) -> None:
        """What one use of the parameter brought from one piece."""
        if self.weights[index] != 1.0:
            gradient = gradient * self.weights[index]
        if index in self.squares:  # a further use that the forward did not announce
            self.failed = True
        elif self.calls == 1:
            self._settle(index, gradient)
        else:
            held = self._sums.get(index)
            self._sums[index] = gradient if held is None else held + gradient

    def arrived(self, gradients: tuple[Tensor | None, ...]) -> None:
        """Hook of the node: autograd has summed what all uses brought."""
        (gradient,) = gradients
        if gradient is None:
            return
        self._arrivals += 1
        if not self.contested:
            (index,) = self.weights
            self.squares[index] = _square(gradient.detach())
            return
        for index, held in self._sums.items():
            self._settle(index, held)
        self._sums.clear()
        if self._total is None:
            self.failed = True
            return
        self._error = _square(self._total - gradient.detach()).sqrt()
        self._total = None

    def measured(self) -> Tensor | None:
        """Whether the squares stand for the whole gradient; None if it is known that they don't.
        Of shape (), bool, on the parameter's device."""
        if self.failed or self._arrivals > 1:
            return None
        if self._arrivals == 0:  # then nothing may claim to have contributed
            return None if self.squares or self._sums else self._yes
        if self._error is None or self._bound is None:
            return None if self.contested else self._yes
        return self._error <= self._bound

    def _settle(self, index: int, gradient: Tensor) -> None:
        """A piece's gradient is complete: keep its norm, and the sum over pieces."""
        square = self.squares[index] = _square(gradient)
        rounding = torch.finfo(gradient.dtype).eps ** 0.5 * square.sqrt()
        self._bound = rounding if self._bound is None else self._bound + rounding
        gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        self._total = gradient if self._total is None else self._total + gradient


def _called(
    layer: _Layer,
    pieces: Sequence[Piece],
    tallies: Mapping[str, _Tally],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    output: Tensor,
) -> None:
    """Forward hook: take the pieces' gradients when that of the output is known."""
    if not output.requires_grad:
        return
    inputs = (args[0] if args else next(iter(kwargs.values()))).detach()
    rows = len(inputs) if takes_rows(module, inputs) else 0
    for tally in tallies.values():
        tally.calls += 1
        if rows != pieces[-1].stop:  # the first dimension is not the pass's rows
            tally.failed = True
    output.register_hook(partial(_returned, layer, pieces, tallies, inputs))


def _returned(
    layer: _Layer,
    pieces: Sequence[Piece],
    tallies: Mapping[str, _Tally],
    inputs: Tensor,
    grad_output: Tensor | None,
) -> None:
    """Tensor hook of a layer's output."""
    if grad_output is None:
        return
    measurable = {name: tally for name, tally in tallies.items() if not tally.failed}
    with torch.no_grad():
        for index, piece in enumerate(pieces):
            wanted = [name for name, tally in measurable.items() if index in tally.weights]
            if wanted:
                rows = slice(piece.start, piece.stop)
                found = layer.gradients(inputs[rows], grad_output[rows], wanted)
                for name in wanted:
                    measurable[name].add(index, found[name])


def _square(gradient: Tensor) -> Tensor:
    """The squared norm, summed in float64."""
    return torch.linalg.vector_norm(gradient, dtype=torch.float64).square()


def _own(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((local, p) for local, p in module._parameters.items() if p is not None)
