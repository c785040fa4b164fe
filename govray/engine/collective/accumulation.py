"""Forward and backward of one rank's passes: Σ_i w_il ∂ℓ_i/∂θ_l, in ``.grad``.

A bucket that is complete is summed over ranks while later passes still run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from govray.engine.batch import MicroBatch
from govray.engine.collective.aggregator import Governed
from govray.engine.collective.exchange import Exchange
from govray.engine.collective.norm_samples import NormSampler
from govray.engine.collective.padding_pass import Padding
from govray.engine.collective.routed_model import RoutedModel
from govray.engine.collective.sharded_row_trial import ShardedRowTrial
from govray.engine.gradients.forward import Forward, LossFn, PartLoss, total
from govray.engine.gradients.pass_check import PassTrials
from govray.engine.gradients.pass_planner import Pass, Planner
from govray.engine.graphs.pass_graphs import PassGraphs
from govray.errors import Refused


@dataclass(frozen=True)
class Accumulation:
    """Does a step's passes. ``try_rows``: before them, where no rank may try by itself."""

    routed: RoutedModel
    planner: Planner
    forward: Forward
    trials: PassTrials
    padding: Padding
    sampler: NormSampler
    aggregator: Governed
    graphs: PassGraphs | None = None
    try_rows: ShardedRowTrial | None = None

    def __call__(
        self,
        rows: Sequence[MicroBatch],
        planned: Sequence[Pass],
        exchange: Exchange,
        loss_fn: LossFn,
    ) -> tuple[list[Pass], list[PartLoss]]:
        """Do the passes of one step, as they are planned for its rows. Collective.

        Returns:
            The passes that were done, and the losses of their parts, still on the device.
        """
        usable = self.trials.usable(planned, exchange.step, loss_fn)
        passes = self.padding.fill(usable, exchange)
        if self.try_rows is not None:
            before = self.planner.unsliced
            self.try_rows(passes, exchange, loss_fn)
            if self.planner.unsliced != before:
                passes = self.padding.refill(self.planner.passes(rows), exchange)
        self.sampler.begin(exchange.step)
        self.aggregator.expect(passes)
        losses: list[PartLoss] = []
        for place, each in enumerate(passes):
            losses += self._launched(each, exchange.step, loss_fn) or self._run(
                place, each, exchange.step, loss_fn
            )
        self._require_routed(passes)
        return passes, losses

    def _launched(self, each: Pass, step: int, loss_fn: LossFn) -> list[PartLoss]:
        """A pass by its graph; nothing if it has to run."""
        if self.graphs is None or self.sampler.due(step):
            return []
        done = self.graphs.run(each, step, loss_fn)
        if done is None:
            return []
        losses, names = done
        self.aggregator.accumulated(names)
        return [*losses]

    def _run(self, place: int, each: Pass, step: int, loss_fn: LossFn) -> list[PartLoss]:
        observed = self.sampler.measuring(each, step)
        with (
            self.aggregator.during(place) as model,
            self.forward(each, step, partial(_on, model, loss_fn), observed) as parts,
        ):
            self.aggregator.backward(place, total(parts))
        return [replace(part, sum=part.sum.detach()) for part in parts]

    def _require_routed(self, passes: Sequence[Pass]) -> None:
        """Autograd did the masking; see that nothing else wrote a gradient."""
        allowed = {name for each in passes for name in (*each.weights, *each.reaches)}
        for name, parameter in self.forward.reached(passes).items():
            if parameter.grad is not None and name not in allowed:
                raise Refused(
                    f"{name} received a gradient that no route permits",
                    do="Let loss_fn leave requires_grad and .grad alone",
                )


def _on(model: nn.Module, loss_fn: LossFn, _: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    """The losses of the model that the aggregator wants called."""
    return loss_fn(model, tensors)
