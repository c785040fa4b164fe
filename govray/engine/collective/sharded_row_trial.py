"""Before rows of a sharded model train anything: does a row learn from those beside it?

A forward of a sharded model is a collective, so no rank can try alone as
`govray.engine.startup.row_trial` does. All ranks try together, in the first step of this process
that has rows of a domain. They do so again at its 16th, 32nd, … 512th such step, and at each 512th.
Each rank takes rows of one stream. It brings a fixed number of them, the same ones again if it has
fewer, and a row of padding if it has none. All ranks do as many passes, whatever they find. For
each place in turn:

1. The row's loss and gradient stay when the others are exchanged. It keeps its place, and what is
   drawn there.
2. They are the same when it is alone, unless something is drawn.

The first trial also finds out whether the layers see rows in their first dimension, of several rows
and of one. Where one doesn't, its gradient can't be taken by rows. All ranks hear of it, and plan
passes of one route.

A gradient is the sum over ranks, and each holds a shard of it. So distances are summed over ranks,
and all find the same. Losses, and gradients of adapters, which stay whole, are each rank's own.
What one refuses for these, the next meeting carries.

Invariant: no number of the training changes. The step's gradients begin after it.

What a forward leaves behind is no matter of this trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from govray.engine.batch import MicroBatch
from govray.engine.collective.exchange import Exchange
from govray.engine.collective.fsdp2 import FSDP2
from govray.engine.gradients.forward import Forward, LossFn
from govray.engine.gradients.gradient_gap import Gradients, gaps, rounding
from govray.engine.gradients.layer_coverage import covered, takes_rows
from govray.engine.gradients.pass_planner import Pass, Planner
from govray.engine.gradients.precision import coarsest, watch_dtypes
from govray.engine.model.rng_state import generators
from govray.engine.steps.row_difference import (
    REPEATED,
    due_again,
    require_same_gradients,
    require_same_loss,
)

_ROWS = 3


class ShardedRowTrial:
    """Tries domains as they come. Collective.

    Args:
        max_rows: Rows that go through the model together at most; None for no limit.
    """

    def __init__(
        self, planner: Planner, forward: Forward, aggregator: FSDP2, max_rows: int | None
    ) -> None:
        self._planner = planner
        self._forward = forward
        self._aggregator = aggregator
        self._rows = min(_ROWS, max_rows or _ROWS)
        self._steps_with: Counter[int] = Counter()
        self._tried: Counter[str] = Counter()
        self._looked = planner.unsliced is not None
        self._flat: set[str] = set()

    def __call__(self, passes: Sequence[Pass], exchange: Exchange, loss_fn: LossFn) -> None:
        """Try what is due of these passes, of which all ranks have as many of each domain.
        Whether rows can be sliced is known behind it; `Planner.unsliced` says why not.

        Raises:
            Refused: A row learns from others.
            StoppedTogether: Another rank failed.
        """
        for domain in sorted({self._planner.domain_of(each) for each in passes}):
            self._steps_with[domain] += 1
            times = self._steps_with[domain]
            if times == 1 or due_again(times):
                own = [each for each in passes if self._planner.domain_of(each) == domain]
                rows = self._some(own)
                for place in range(self._rows):
                    _ShardComparison(self, rows, place, exchange, loss_fn).run()
                if not self._looked and exchange.total(torch.tensor([float(len(self._flat))])) > 0:
                    self._planner.unsliced = f"no rows first in {', '.join(sorted(self._flat))}"
                self._looked = True

    @contextmanager
    def _watched(self, model: nn.Module, rows: int) -> Iterator[None]:
        """See which layers don't have these rows in their input's first dimension."""

        def look(fqn: str, layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            inputs = args[0] if args else next(iter(named.values()))
            if not takes_rows(layer, inputs) or len(inputs) != rows:
                self._flat.add(fqn)

        hooks = [
            module.register_forward_pre_hook(partial(look, fqn), with_kwargs=True)
            for fqn, module in model.named_modules()
            if not self._looked and module._parameters and covered(module)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _some(self, passes: Sequence[Pass]) -> list[MicroBatch]:
        """Rows of the stream that was tried least often here, and of those of the largest."""
        parts = [part for each in passes for part in each.parts]
        chosen = min(parts, key=lambda part: (self._tried[part.route], -len(part.positions)))
        self._tried[chosen.route] += 1
        count = len(chosen.positions)
        rows = [chosen.cut(index, index + 1) for index in range(min(self._rows, count))]
        return [
            replace(rows[index % len(rows)], corpora=())  # no sample measures it
            for index in range(self._rows)
        ]


class _ShardComparison:
    """Compares the row at a place with itself."""

    def __init__(
        self,
        trial: ShardedRowTrial,
        rows: Sequence[MicroBatch],
        place: int,
        exchange: Exchange,
        loss_fn: LossFn,
    ) -> None:
        self._trial = trial
        self._rows = rows
        self._place = place
        self._exchange = exchange
        self._loss_fn = loss_fn
        self._draws = False
        self._dtypes: set[torch.dtype] = set()

    def run(self) -> None:
        """Raises what `ShardedRowTrial` does."""
        together = range(len(self._rows))
        others = [row if row == self._place else (row + 1) % len(together) for row in together]
        loss, expected = self._pass(together)
        repeated = [self._pass(together, factor)[1] for factor in REPEATED]
        noise = rounding(expected, repeated)
        tolerance = coarsest(self._dtypes) ** 0.5
        for order in (others, [self._place]):
            again, found = self._pass(order)
            if order is not others and self._draws:  # alone it meets other draws
                again, found = loss, expected
            require_same_loss(loss, again, abs(loss), tolerance, lambda: "loss_fn")
            self._require_equal(expected, found, noise, tolerance)

    def _pass(self, order: Sequence[int], factor: float = 1.0) -> tuple[float, Gradients]:
        """The row's loss in this order, and this rank's shards of the gradients of such losses."""
        places = range(len(self._rows)) if len(order) > 1 else order
        # What is drawn belongs to a place: generators are seeded by positions.
        rows = [
            replace(self._rows[row], positions=self._rows[place].positions)
            for row, place in zip(order, places, strict=True)
        ]
        trial = self._trial
        each = trial._planner.tried(rows, sliced=trial._looked)
        with (
            trial._aggregator.aside(each) as model,
            trial._watched(model, len(rows)),
            trial._forward(each, self._exchange.step, partial(self._losses, model)) as parts,
        ):
            loss = parts[places.index(self._place)].sum
            self._dtypes.add(loss.dtype)
            seen = watch_dtypes([loss])
            trial._aggregator.backward(0, loss * factor)
            self._dtypes |= seen
        found = {}
        for name, parameter in trial._forward.reached([each]).items():
            if parameter.grad is not None:
                found[name] = trial._aggregator.local(parameter.grad)
                parameter.grad = None
        return float(loss.detach()), found

    def _losses(self, model: nn.Module, _: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        before = generators()
        losses = self._loss_fn(model, tensors)
        self._draws |= bool(before.drawn_until(generators()))
        return losses

    def _require_equal(
        self,
        expected: Gradients,
        found: Gradients,
        noise: Mapping[str, float],
        tolerance: float,
    ) -> None:
        """Of what is sharded by all ranks' numbers, of adapters by this rank's."""
        own = gaps(expected, found, noise)
        held = sorted(self._trial._aggregator.held)
        shards = torch.tensor([own.pop(name) for name in held], dtype=torch.float64)
        whole = self._exchange.total(shards.square()).sqrt().tolist()
        for each in (dict(zip(held, map(tuple, whole), strict=True)), own):
            require_same_gradients(each, tolerance, lambda name: name.rpartition(".")[0] or name)
