"""Padding: passes over a row of nothing, for a rank that has no rows where others do.

A host whose collectives run in forward or backward needs equal passes on all ranks. A padding
pass has one row of zeros, of the shape that rows have, all of its targets ignored. No parameter
may learn from it, and every gradient that arrives is zero.

The shape is that of the rank's own rows, or of an earlier step's. A rank that never had
any is told by one that has.

Nothing of a row's content goes to another rank.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from govray.engine.batch import IGNORED, AfterStep, MicroBatch
from govray.engine.collective.aggregator import Governed, trainable
from govray.engine.collective.agreement import Agreement
from govray.engine.collective.exchange import Exchange, Needs
from govray.engine.gradients.pass_planner import Pass, Planner, Slices
from govray.errors import Refused

Shape = dict[str, tuple[list[int], str]]
"""Tensor name → dimensions of one row, and dtype."""


class Padding:
    """Fills up this rank's passes, and knows what rows look like."""

    def __init__(
        self, model: nn.Module, planner: Planner, aggregator: Governed, agreement: Agreement
    ) -> None:
        self._names = tuple(trainable(model))
        self._device = next(model.parameters()).device
        self._planner = planner
        self._aggregator = aggregator
        self._agreement = agreement
        self._shape: Shape | None = None

    def needs(self, passes: Sequence[Pass], asked: AfterStep = AfterStep.NOTHING) -> Needs:
        """What this rank, with these passes, needs all ranks to do."""
        if passes:
            self._see(passes[0].parts[0].tensors)
        by_domain = Counter(self._planner.domain_of(each) for each in passes)
        needed = self._aggregator.passes_needed(by_domain)
        return Needs(tuple(needed), shape=self._shape is None, asked=asked)

    def fill(self, passes: Sequence[Pass], exchange: Exchange) -> list[Pass]:
        """As many passes of each domain as the aggregator needs on all ranks. Collective.

        Raises:
            GovrayError: As the exchange's.
            Refused: No rank can tell another what rows look like.
        """
        if not self._aggregator.hosted:
            return list(passes)
        needs = exchange.needs
        if needs.shape and any(needs.passes):
            self._learn()
        return self._filled(passes, needs.passes)

    def refill(self, passes: Sequence[Pass], exchange: Exchange) -> list[Pass]:
        """The same of passes that are planned anew, on all ranks. Collective."""
        own = self.needs(passes).passes
        return self._filled(passes, exchange.most(own))

    def _filled(self, passes: Sequence[Pass], needed: Sequence[int]) -> list[Pass]:
        filled: list[Pass] = []
        for domain, least in enumerate(needed):
            own = [each for each in passes if self._planner.domain_of(each) == domain]
            stream = self._planner.stream_of(domain)
            filled += own + [self._row(stream) for _ in range(least - len(own))]
        return filled

    def _see(self, tensors: Mapping[str, Tensor]) -> None:
        """Remember the shape and dtype of rows: by name, each (rows, …)."""
        self._shape = {
            name: (list(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in tensors.items()
        }

    def _learn(self) -> None:
        """Take over the shape from the first rank that knows it. Collective."""
        told = [text for text in self._agreement.texts(json.dumps(self._shape)) if text != "null"]
        try:
            shape = json.loads(told[0])
        except (IndexError, ValueError):
            raise Refused(
                "no rank can tell another what rows look like",
                where="padding passes",
                do="Use aggregator: governed, which needs no rows on a rank without any",
            ) from None
        self._shape = self._shape or shape

    def _row(self, stream: str) -> Pass:
        """A padding pass among those of a stream's domain."""
        assert self._shape is not None
        tensors = {
            name: torch.zeros(1, *shape, dtype=getattr(torch, dtype), device=self._device)
            for name, (shape, dtype) in self._shape.items()
        }
        tensors["targets"].fill_(IGNORED)
        parts = (MicroBatch(stream, tensors, (0,), (0,)),)
        if self._planner.unsliced is not None:
            return Pass(parts, {}, None, reaches=self._names)
        slices = dict.fromkeys(self._names, Slices((0.0,), (True,)))
        return Pass(parts, dict.fromkeys(self._names, 1.0), None, slices)
