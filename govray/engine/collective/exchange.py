"""The exchanges of one step, as one rank takes part in them.

1. Begun before the forward pass: what each rank brings and needs. Awaited before the first
   gradient is sent.
2. Meetings, where torch's hosts run collectives in forward and backward. Before each, ranks meet:
   all are well, or all stop. A rank that fails goes to the second status instead, which the others
   meet there.
3. The second status, with the sums behind the step's losses.

The third status follows the optimizer (`Agreement.confirm`).

Invariants:

* What stops a rank in a meeting has stopped all: the same error, raised by all.
* A loss function can't go on after it, whatever it catches: the next meeting stops it again,
  without an exchange that nobody would answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from govray.engine.batch import AfterStep
from govray.engine.collective.agreement import (
    Agreed,
    Agreement,
    Pending,
    RankFailure,
    StoppedTogether,
)
from govray.engine.collective.allreduce import Domain
from govray.engine.collective.routed_model import RoutedModel
from govray.engine.gradients.device_reading import no_losses
from govray.errors import GovrayError


@dataclass(frozen=True)
class Needs:
    """What a rank needs all ranks to do in a step; agreed is the most that any of them needs.

    Attributes:
        passes: Of each domain, how many.
        shape: Whether to be told what rows look like.
        asked: What to do after the step.
    """

    passes: tuple[int, ...]
    shape: bool
    asked: AfterStep

    @staticmethod
    def count(domains: int) -> int:
        """How many numbers say it."""
        return domains + 2

    @property
    def numbers(self) -> list[int]:
        return [*self.passes, int(self.shape), int(self.asked)]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Needs:
        *passes, shape, asked = numbers
        return cls(tuple(passes), bool(shape), AfterStep(asked))


class Exchange:
    """The exchanges of one step on this rank.

    Args:
        fresh: The step's gradients; joined by those of parameters that other ranks train.

    Attributes:
        stopped: What stopped the ranks in a meeting, once it did.
    """

    def __init__(
        self,
        agreement: Agreement,
        pending: Pending,
        step: int,
        routed: RoutedModel,
        fresh: FreshGradients,
    ) -> None:
        self._agreement = agreement
        self._pending = pending
        self._routed = routed
        self._fresh = fresh
        self.step = step
        self.stopped: GovrayError | None = None

    @property
    def agreed(self) -> Agreed:
        """What all ranks bring. Awaits the first exchange; later reads answer as the first did."""
        return self._pending.wait()

    @property
    def needs(self) -> Needs:
        """The most that any rank needs. Awaits the first exchange."""
        return Needs.of(self.agreed.most)

    @cached_property
    def live(self) -> tuple[Domain, ...]:
        """The domains with N_l > 0 somewhere. Awaits the first exchange."""
        targets = self.agreed.group_targets
        found = [d for d in self._routed.domains if any(targets[group] for group in d.groups)]
        for domain in found:
            self._fresh.include(domain.parameters)
        return tuple(found)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """N_l by name of each parameter of the live domains. Awaits the first exchange."""
        targets = self.agreed.group_targets
        names = (name for domain in self.live for name in domain.parameters)
        return {name: targets[self._routed.group_of[name]] for name in names}

    def meet(self) -> None:
        """Return if all ranks are well. Collective. Raises ``StoppedTogether``: one is not."""
        if self.stopped is None:
            try:
                self._pending.wait()
                self._agreement.conclude(self.step, no_losses(len(self._routed.streams)), None)
            except GovrayError as error:
                self.stopped = error
        if self.stopped is not None:
            raise StoppedTogether(self.stopped)

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over ranks, once all are well. Collective.
        ``numbers``: of one shape on all ranks, on the CPU. Raises ``StoppedTogether``."""
        self.meet()
        return torch.stack(self._agreement.exchange(numbers)).sum(0)

    def most(self, numbers: Sequence[int]) -> list[int]:
        """The largest of each over ranks, once all are well. Collective, as `total`."""
        self.meet()
        rows = self._agreement.exchange(torch.tensor(numbers))
        return [int(each) for each in torch.stack(rows).amax(0)]

    def conclude(self, losses: Tensor, failure: RankFailure | None) -> Tensor:
        """The second status: the sums over all ranks, if all are well. Collective.
        ``losses``: this rank's, of the shape of `no_losses`, float64, on the CPU."""
        if self.stopped is not None:
            raise self.stopped
        return self._agreement.conclude(self.step, losses, failure)


class FreshGradients:
    """Inside this context, ``.grad`` of its parameters is the step's own.
    ``parameters``: by name, those that this rank's passes can reach."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters: dict[str, nn.Parameter] = {}
        self.include(parameters)

    def include(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Take more parameters in; a gradient that a new one has is dropped now."""
        new = {name: p for name, p in parameters.items() if name not in self._parameters}
        _drop(new)
        self._parameters |= new

    def __enter__(self) -> FreshGradients:
        return self

    def __exit__(self, *_: object) -> None:
        _drop(self._parameters)


def _drop(parameters: Mapping[str, nn.Parameter]) -> None:
    for parameter in parameters.values():
        parameter.grad = None
