"""What a step reads from its device, all at once: nowhere else does the host wait for the device.

A device runs behind the host: kernels are queued, and a value is there once all kernels before it
have run. A reader of a number waits for that, and then the queue is empty. So losses, counts and
norms stay on the device. They go to the host together, behind the last of them. A step waits for
that copy at once, or while the kernels of the next step are queued.

Invariants:

* One copy for each device that holds something, and one wait for it.
* float64 holds every value exactly: losses and norms of any dtype, and counts below 2^53.
* Sums over parts are made on the host, in the order of the parts, so they are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from govray.engine.gradients.forward import PartLoss
from govray.errors import Refused

Squares = Mapping[tuple[str, str], Tensor]
"""(corpus, layer group) → squared gradient norm, shape ()."""


@dataclass(frozen=True)
class StepReading:
    """Numbers of one step, on the host.

    Attributes:
        losses: (sum of losses, number of loss targets) per stream, of shape (streams, 2),
            float64, on the CPU.
        norms: Domain → gradient norm before clipping.
    """

    losses: Tensor
    norms: Mapping[str, float]
    squares: Mapping[tuple[str, str], float]

    @classmethod
    def nothing(cls, streams: Collection[str]) -> StepReading:
        """Of a rank that has nothing to read."""
        return cls(no_losses(len(streams)), {}, {})

    @classmethod
    def queued(
        cls,
        streams: Collection[str],
        parts: Sequence[PartLoss],
        norms: Mapping[str, Tensor],
        squares: Squares,
    ) -> Callable[[], StepReading]:
        """Queue the copy to the host.

        Args:
            streams: All of the run, in one order on all ranks.
            parts: Of this rank's passes; their tensors, and all others here, are scalars of any
                dtype and device.

        Returns:
            The one wait for the device. It raises ``Refused`` if a micro-batch holds more or fewer
            loss targets than it says.
        """
        sums = [part.sum for part in parts]
        targets = [part.targets for part in parts]
        awaited = _host_values([*sums, *targets, *norms.values(), *squares.values()])

        def wait() -> StepReading:
            values = iter(awaited())
            read_sums = [next(values) for _ in sums]
            read_targets = [int(next(values)) for _ in targets]
            return cls(
                _by_stream(list(streams), parts, read_sums, read_targets),
                {name: next(values) for name in norms},
                {key: next(values) for key in squares},
            )

        return wait


def no_losses(streams: int) -> Tensor:
    """Zeros for (sum of losses, number of targets): shape (streams, 2), float64, on the CPU."""
    return torch.zeros(streams, 2, dtype=torch.float64)


def _by_stream(
    streams: Sequence[str], parts: Sequence[PartLoss], sums: Sequence[float], targets: Sequence[int]
) -> Tensor:
    losses = no_losses(len(streams))
    for part, total, counted in zip(parts, sums, targets, strict=True):
        if counted != part.stated:
            raise Refused(
                f"a micro-batch of stream {part.stream} holds {counted} loss "
                f"targets, row_targets says {part.stated}",
                do="Count the targets that are not −100",
            )
        losses[streams.index(part.stream)] += torch.tensor([total, counted], dtype=torch.float64)
    return losses


@torch.no_grad()
def _host_values(scalars: Sequence[Tensor]) -> Callable[[], list[float]]:
    """Queue a copy for each device; the result waits for them."""
    places: dict[torch.device, list[int]] = {}
    for place, scalar in enumerate(scalars):
        places.setdefault(scalar.device, []).append(place)
    copies = [
        (own, _on_host(torch.stack([scalars[place].double() for place in own])))
        for own in places.values()
    ]

    def awaited() -> list[float]:
        values = [0.0] * len(scalars)
        for own, copied in copies:
            for place, value in zip(own, copied().tolist(), strict=True):
                values[place] = value
        return values

    return awaited


def _on_host(values: Tensor) -> Callable[[], Tensor]:
    """Queue a copy to the CPU, if the values are on a GPU; the result waits for it."""
    if values.device.type != "cuda":
        return lambda: values
    # Pageable memory would make the copy wait twice; an event says which wait is meant.
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    pinned.copy_(values, non_blocking=True)
    copied = torch.cuda.current_stream(values.device).record_event()

    def wait() -> Tensor:
        copied.synchronize()
        return pinned

    return wait
