"""The aggregators: who sums gradients over ranks, and what the step asks of each.

``governed`` sends buckets itself (``bucket_reducer.py``). ``ddp`` and ``fsdp2`` leave the base
model to torch's DistributedDataParallel and ``fully_shard`` (``ddp.py``, ``fsdp2.py``), and
send only what those do not hold, the adapters, themselves. All three return the
undivided sum; dividing by N_l, the check for infinities, clipping and the agreement
are the step's, and the same.

torch's hosts need two things that the reducer does not:

* Every backward reaches every parameter that they hold. Passes are sliced, or say what they
  reach, and a rank with fewer rows than others runs padding passes (``padding_pass.py``).
* Their collectives run where a rank that failed can't answer. So ranks meet before:
  ``meet`` returns on all ranks or raises on all. What a rank owes after that, it pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from govray.engine.collective.allreduce import BucketLayout, Domain, lay_out
from govray.engine.collective.bucket_reducer import Counts, Reducer
from govray.engine.gradients.pass_planner import Pass

Meet = Callable[[], None]
"""Returns if all ranks are well, raises on all if one is not. Collective."""


class Governed:
    """Sums every gradient in buckets of its own; what the others build on.

    Collective: all ranks make one, and call its methods in the same order.

    Args:
        domains: In the order of their passes, with all their parameters.
        timeout: How long a collective on a process group of its own waits for other ranks.

    Attributes:
        held: Parameters that torch holds: every sliced backward has to reach them.
        hosted: Places of the domains whose every backward has to reach all of ``held``.
        tries: Whether one rank may try a pass by itself.
        zeros: Whether a parameter without permitted rows needs a gradient of zeros.
        host: Who sums what it holds, for people.
        underway: Whether a host has begun in this step what a failure would leave half done.
            Equal on all ranks when a step fails.
    """

    host = "govray"

    def __init__(
        self,
        model: nn.Module,
        domains: Sequence[Domain],
        layout: BucketLayout,
        held: Collection[str] = (),
        *,
        timeout: timedelta | None = None,
    ) -> None:
        self.held = frozenset(held)
        self.hosted: frozenset[int] = frozenset()
        self.tries = True
        self.zeros = False
        self.underway = False
        self._model = model
        self._domains = domains
        self._rest = [self._without_held(domain, layout) for domain in domains]
        # Its collectives may not take turns with those of torch, which come in another order.
        own = self.held and dist.is_initialized()
        group = dist.new_group(timeout=timeout) if own else None
        self._reducer = Reducer(self._rest, group)

    def passes_needed(self, passes: Mapping[int, int]) -> list[int]:
        """The passes that all ranks must do of each domain, because this one has rows for them."""
        return [0] * len(self._domains)

    def begin(self, counts: Counts, meet: Meet) -> None:
        """Before anything of a step can fail. ``meet``: awaits that all ranks are well."""
        self._reducer.begin(counts)

    def expect(self, passes: Sequence[Pass]) -> None:
        """Before the first backward of a step: this rank's passes, in order."""
        names = (name for each in passes for name in each.weights)
        self._reducer.expect(Counter(name for name in names if name not in self.held))

    @contextmanager
    def during(self, place: int) -> Iterator[nn.Module]:
        """Around forward and backward of the pass at a place: the model to call."""
        yield self._model

    def backward(self, place: int, total: Tensor) -> None:
        """The backward of that pass.

        Args:
            place: The pass's.
            total: Its loss, of shape ().
        """
        total.backward()

    def accumulated(self, names: Sequence[str]) -> None:
        """After a pass that no backward did: the parameters whose gradients it added to."""
        self._reducer.accumulated(names)

    def send_rest(self) -> None:
        """Send what is still owed, whatever happened before. Collective."""
        self._reducer.send_rest()

    def sums(self) -> dict[str, Tensor]:
        """Wait for the sums over ranks, by parameter name. Collective.
        Each has its parameter's shape, dtype and device, and is a DTensor where that is one."""
        return self._reducer.sums()

    def largest(self) -> dict[str, Tensor]:
        """Parameter name → the largest magnitude of this rank's gradient before the sum.

        Each has shape (), and the gradient's dtype and device. A parameter that this rank
        had no gradient for is absent.
        """
        return dict(self._reducer.largest)

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The 2-norm of gradients together, equal on all ranks. Collective.

        Args:
            gradients: Summed ones by name, of any shapes, of one dtype and device.

        Returns:
            Shape (), of the gradients' dtype and on their device.
        """
        return get_total_norm(gradients.values())

    def local(self, gradient: Tensor) -> Tensor:
        """What this rank holds of a summed gradient, in its dtype and on its device."""
        return gradient

    def end(self) -> None:
        """After a step, done or not."""
        self._reducer.end()

    def _without_held(self, domain: Domain, layout: BucketLayout) -> Domain:
        if self.held.isdisjoint(domain.parameters):
            return domain
        rest = {name: p for name, p in domain.parameters.items() if name not in self.held}
        return lay_out(domain.name, domain.groups, rest, layout)


class Hosted(Governed):
    """What DDP and FSDP2 have in common: torch holds parameters, and sums them."""

    def __init__(
        self,
        model: nn.Module,
        domains: Sequence[Domain],
        layout: BucketLayout,
        held: Mapping[str, nn.Parameter],
        *,
        timeout: timedelta | None = None,
    ) -> None:
        super().__init__(model, domains, layout, held, timeout=timeout)
        self._held = held
        self._meet: Meet = _alone
        self._largest: dict[str, Tensor] = {}

    def begin(self, counts: Counts, meet: Meet) -> None:
        super().begin(counts, meet)
        self.underway = False
        self._meet = meet
        self._largest = {}

    def sums(self) -> dict[str, Tensor]:
        return super().sums() | _taken(self._held)

    def end(self) -> None:
        super().end()
        self._meet = _alone

    def largest(self) -> dict[str, Tensor]:
        return super().largest() | self._largest


def _alone() -> None:
    """Outside a step nobody is met: forwards and backwards there are the user's own."""


def base_domains(domains: Sequence[Domain], held: Collection[str]) -> list[int]:
    """Places of the domains that have a parameter of the base model."""
    return [
        place
        for place, domain in enumerate(domains)
        if not domain.parameters.keys().isdisjoint(held)
    ]


def _taken(held: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """What torch put into ``.grad``, out of it: also into that of parameters that no route reaches,
    and there the optimizer would decay it."""
    gradients = {name: p.grad for name, p in held.items() if p.grad is not None}
    for parameter in held.values():
        parameter.grad = None
    return gradients


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The base model's parameters that may learn, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
