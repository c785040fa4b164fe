"""One pass through the model, under its route: losses of each part, ready for backward.

Everything that must hold while rows of one pass are in the model is a context, and ``Forward``
stacks them. They decide which parameters require grad, which adapter is read, whose dropout masks
are drawn, and which rows teach a layer. They let no buffer change. Backward belongs inside too, for
activation checkpointing runs the forward again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from govray.engine.batch import IGNORED
from govray.engine.gradients.pass_planner import Pass
from govray.engine.gradients.precision import in_precision
from govray.engine.gradients.routing import (
    lost_gradients_refused,
    permitted,
    refuse_float16,
    unchanged_buffers,
)
from govray.engine.gradients.sliced_pass import sliced
from govray.engine.model.adapters import Adapters
from govray.engine.model.keyed_dropout import Keyed
from govray.errors import UsageError
from govray.governance.policy.route import ADAPTER

LossFn = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
"""(model, tensors) → losses of the shape of ``tensors["targets"]``, not reduced."""


@dataclass(frozen=True)
class PartLoss:
    """Of one part of a pass.

    Attributes:
        stream: Digest of the route that its rows take.
        sum: Σ of its losses, with the graph behind it.
        targets: The number of its loss targets, on the device.
        stated: The same, as the batch said.
    """

    stream: str
    sum: Tensor
    targets: Tensor
    stated: int


def total(parts: Sequence[PartLoss]) -> Tensor:
    """Σ of the losses of all parts, of shape (), with the graph behind it."""
    first, *others = (part.sum for part in parts)
    return sum(others, first)


class Forward:
    """Runs passes of one model.

    Args:
        parameters: All parameters by name, adapters' included.
        zeros: Whether a sliced pass gives a parameter without permitted rows zeros.
        autocast: Whether the loss is computed under autocast to bfloat16.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        adapters: Adapters,
        keyed: Keyed,
        *,
        zeros: bool = False,
        autocast: bool = False,
    ) -> None:
        self._zeros = zeros
        self._autocast = autocast
        self._model = model
        base = dict(model.named_parameters())
        # What a pass can reach: no forward reads an adapter that is not active.
        self._reached: dict[str | None, dict[str, nn.Parameter]] = {None: base}
        for group, names in adapters.groups.items():
            adapter = group.removeprefix(ADAPTER)
            self._reached[adapter] = base | {name: parameters[name] for name in names}
        self.adapters = adapters
        self._keyed = keyed
        self._tried: set[str] = set()
        if "torch._dynamo" in sys.modules:
            # A graph from before knows of no hook that was put in since: torch doesn't look.
            torch.compiler.reset()

    @property
    def is_exact(self) -> bool:
        """Whether it computes in float32 or float64, as far as is known from outside."""
        parameters = self._reached[None].values()
        return not self._autocast and all(p.element_size() > 3 for p in parameters)

    def exact(self, parameters: Mapping[int, nn.Parameter]) -> Forward:
        """The same without autocast, over parameters that stand in for its own, by their ``id``."""
        other = copy(self)
        other._autocast, other._tried = False, set()
        other._reached = {
            adapter: {name: parameters.get(id(p), p) for name, p in held.items()}
            for adapter, held in self._reached.items()
        }
        return other

    def reached(self, passes: Iterable[Pass]) -> dict[str, nn.Parameter]:
        """Every parameter that these passes could write a gradient to, and the base model's."""
        found = dict(self._reached[None])
        for adapter in {each.adapter for each in passes}:
            found |= self._reached[adapter]
        return found

    @contextmanager
    def __call__(
        self,
        each: Pass,
        step: int,
        loss_fn: LossFn,
        observed: AbstractContextManager[None] | None = None,
    ) -> Iterator[tuple[PartLoss, ...]]:
        """Do the forward of a pass; do its backward inside.
        ``observed``: entered around it when ``requires_grad`` is as it stays."""
        with self.holding(each, step), observed or nullcontext():
            yield self.losses(each, loss_fn)

    @contextmanager
    def holding(self, each: Pass, step: int, keys: Tensor | None = None) -> Iterator[None]:
        """Inside, all holds that must while rows of this pass are in the model.
        ``keys``: those of its rows, as for `Keyed.rows`: int64 of shape (rows,), on the device."""
        # Once for each stream: it empties Python's memory of which warnings were shown.
        untried = self._untried(each)
        # FSDP2 weighs gradients itself where they arrive, and none may be missing.
        reached = dict.fromkeys(each.reaches if self._zeros else (), 1.0)
        with (
            lost_gradients_refused() if untried else nullcontext(),
            permitted(self._reached[each.adapter], {**each.weights, **reached}),
            self.adapters.active(each.adapter),
            self._keyed.rows(step, each.rows, keys),
            unchanged_buffers(self._model),
            self._slices(each),
        ):
            yield
        self._tried |= untried

    def losses(self, each: Pass, loss_fn: LossFn) -> tuple[PartLoss, ...]:
        """The losses of a pass, by part; call it inside `holding`."""
        targets = each.tensors["targets"]
        with in_precision(targets.device, autocast=self._autocast):
            losses = loss_fn(self._model, each.tensors)
        if losses.shape != targets.shape:
            raise UsageError(
                f"loss_fn returned shape {tuple(losses.shape)}, "
                f"targets have {tuple(targets.shape)}",
                where="loss_fn",
                do="Return one loss for each target, with reduction='none'",
            )
        counted = targets != IGNORED
        if each.masked:
            losses = losses.where(counted, 0.0)
        if not losses.requires_grad and each.weights:  # from padding nothing may learn
            raise UsageError(
                f"the losses of stream {each.parts[0].route} depend on no parameter "
                "that its route permits",
                where="loss_fn",
                do="Compute them with the model, and not under torch.no_grad()",
            )
        if losses.requires_grad and self._untried(each):
            refuse_float16(losses)
        return tuple(
            PartLoss(
                part.route,
                _rows(losses, span).sum(dtype=_wide(losses)),
                _rows(counted, span).sum(),
                part.targets,
            )
            for part, span in zip(each.parts, each.spans, strict=True)
        )

    def _untried(self, each: Pass) -> set[str]:
        return {part.route for part in each.parts} - self._tried

    @contextmanager
    def _slices(self, each: Pass) -> Iterator[None]:
        if each.method != "sliced":
            yield
            return
        with sliced(self._model, len(each.rows), each.row_weights, zeros=self._zeros):
            yield


def _wide(losses: Tensor) -> torch.dtype:
    """What their sum is kept in: bfloat16 would round it to three digits."""
    return torch.float32 if losses.element_size() < 4 else losses.dtype


def _rows(tensor: Tensor, span: tuple[int, int]) -> Tensor:
    start, stop = span
    return tensor if start == 0 and stop == len(tensor) else tensor[start:stop]
