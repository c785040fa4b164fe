"""A sliced pass is used only after a trial on a few rows.

The trial runs the first rows of a pass together and, stream by stream, the plain
way, and looks at the gradients:

1. What a stream's losses give to a parameter that its route forbids is exactly
   zero, or absent.
2. What they give to the permitted ones is the same to rounding: over all of them, ‖together −
   alone‖ ≤ √ε ‖alone‖. Here ε is that of the coarsest dtype inside the loss (``precision.py``).

It reads and changes nothing else: gradients come from ``torch.autograd.grad``, so
no ``.grad`` is written. It costs a few rows, once for each set of streams.

If a stream gets no gradient at all, as from a head of zeros, the trial stays open. The step is then
done stream by stream, and the next step tries again.

The passes of a model under ``torch.compile`` are not joined. Every combination of parts would be
another graph there, and a cached one may lack hooks.

A model that behaves in another way later is not noticed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from govray.engine.batch import MicroBatch
from govray.engine.gradients.forward import Forward, LossFn
from govray.engine.gradients.gradient_gap import gaps
from govray.engine.gradients.pass_planner import Pass, Planner, homogeneous
from govray.engine.gradients.precision import coarsest, watch_dtypes
from govray.engine.steps.routed import Routed
from govray.errors import Refused

Losses = Callable[[Pass], AbstractContextManager[Sequence[Tensor]]]
"""Forward of a pass → the loss sum of each part; backward belongs inside the context."""


@dataclass(frozen=True)
class PassCheck:
    """What a trial found: ``usable`` is None if there was nothing to see."""

    usable: bool | None
    reason: str = ""


class PassTrials:
    """Lets through the passes that this model lends itself to, and replaces the others.
    ``tries``: whether this rank may try a pass by itself; else none is tried, or used."""

    def __init__(
        self,
        planner: Planner,
        forward: Forward,
        routed: Mapping[str, Routed],
        parameters: Mapping[str, nn.Parameter],
        *,
        tries: bool,
    ) -> None:
        self._planner = planner
        self._forward = forward
        self._routed = routed
        self._parameters = parameters
        self._tries = tries
        self._passed: set[tuple[str, ...]] = set()

    def usable(self, passes: Iterable[Pass], step: int, loss_fn: LossFn) -> list[Pass]:
        """The same rows, in passes that give each stream its own gradients."""
        usable: list[Pass] = []
        for each in passes:
            if each.method == "homogeneous" or tried_as(each) in self._passed:
                usable.append(each)
                continue
            if self._planner.unsliced is not None or not self._tries:
                usable += self._planner.instead(each)
                continue
            check = self._try(each, step, loss_fn)
            if check.usable:
                self._passed.add(tried_as(each))
                usable.append(each)
                continue
            if check.usable is False:
                self._planner.unsliced = check.reason
            usable += self._planner.instead(each)
        return usable

    def _try(self, each: Pass, step: int, loss_fn: LossFn) -> PassCheck:
        @contextmanager
        def sums(small: Pass) -> Iterator[list[Tensor]]:
            with self._forward(small, step, loss_fn) as parts:
                yield [part.sum for part in parts]

        return try_pass(trial_rows(each), self._routed, self._parameters, sums)


def trial_rows(full: Pass) -> Pass:
    """A small pass with the same parts: part i has i + 1 rows, the first one repeated.
    Different numbers, so that an argument's first dimension shows whether it is rows."""
    return replace(
        full,
        parts=tuple(_repeated(part, index + 1) for index, part in enumerate(full.parts)),
    )


def tried_as(each: Pass) -> tuple[str, ...]:
    """What a trial of this pass also holds for: the same streams, in the same order."""
    return tuple(dict.fromkeys(part.route for part in each.parts))


def try_pass(
    small: Pass,
    routed: Mapping[str, Routed],
    parameters: Mapping[str, nn.Parameter],
    losses: Losses,
) -> PassCheck:
    """Does a pass give the gradients of each stream by itself?"""
    try:
        with _new_graphs_refused(), losses(small) as sums:
            learning = {name: parameters[name] for name in small.weights}
            dtypes = watch_dtypes(sums)
            together = [_gradients(each, learning) for each in sums]
    except Exception as error:  # whatever a model does to the hooks, it is no such pass
        return PassCheck(False, f"{type(error).__name__}: {error}")
    tolerance = coarsest({p.dtype for p in learning.values()} | dtypes) ** 0.5
    for part, found in zip(small.parts, together, strict=True):
        route = routed[part.route]
        for name, gradient in found.items():
            if name not in route.weights and gradient.any():
                return PassCheck(False, f"rows of stream {part.route} would update {name}")
        with losses(homogeneous(part, route)) as (own,):
            expected = _gradients(own, {name: parameters[name] for name in route.weights})
        if not any(gradient.any() for gradient in expected.values()):
            return PassCheck(None)
        permitted = {name: gradient for name, gradient in found.items() if name in route.weights}
        norms, _, apart = zip(*gaps(expected, permitted, {}).values(), strict=True)
        gap = math.hypot(*apart) / math.hypot(*norms)
        if not gap <= tolerance:
            return PassCheck(False, f"stream {part.route}: gradients differ by {gap:.1e}")
    return PassCheck(True)


@contextmanager
def _new_graphs_refused() -> Iterator[None]:
    """Refuse a forward for which ``torch.compile`` would make a graph."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and importing it takes seconds
        yield
        return
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            yield
    except RuntimeError as error:
        if "fail_on_recompile" not in str(error):
            raise
        raise Refused(
            "the model is compiled, and every combination of streams would be another graph",
            where="model",
        ) from error


def _gradients(loss: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    tensors = list(parameters.values())
    gradients = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
    named = zip(parameters, gradients, strict=True)
    return {name: gradient for name, gradient in named if gradient is not None}


def _repeated(part: MicroBatch, rows: int) -> MicroBatch:
    return replace(
        part,
        tensors={
            name: tensor[:1].expand(rows, *tensor.shape[1:]).contiguous()
            for name, tensor in part.tensors.items()
        },
        positions=part.positions[:1] * rows,
        row_targets=part.row_targets[:1] * rows,
        corpora=(),
    )
