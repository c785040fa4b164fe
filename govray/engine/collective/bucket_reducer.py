"""The overlapped reducer: a bucket is summed over ranks while later layers still run backward.

A step may have several passes, and ranks may have different ones. A parameter is ready once every
pass of this rank that may update it has added its gradient. A bucket is ready when all its
parameters are. Buckets are sent in one order on all ranks, whatever order they become ready in. A
rank sends zeros where it has no gradient.

Invariants:

* The agreement is awaited before the first bucket is sent; it says which are sent.
* Every rank sends the same buckets in the same order, also one that failed: it owes
  the others its part, or they would wait.
* The sums are those of an all-reduce after the last backward, bit for bit: same buckets, same
  flattening, same collective; only the time differs.
* A gradient that changes after its bucket was sent is an error.
* A gradient is held once: when its bucket is sent, of the rank's own only its largest magnitude is
  kept. It names the rank if the sum turns out not to be finite.

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", for buckets sent during backward in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from govray.engine.collective.agreement import lost_peers_reported
from govray.engine.collective.allreduce import (
    Domain,
    flat_gradient,
    largest_magnitudes,
    unflattened,
)
from govray.errors import Refused

Counts = Callable[[], Mapping[str, int]]
"""Awaits the agreement: N_l of the layer group that each parameter is in, by parameter name.
Parameters of domains without rows in this step may be absent."""


class Reducer:
    """Sums gradients over ranks during backward.

    Args:
        domains: In the order of their passes, the same on all ranks.
        group: Process group of the sums; the default one if None.

    Attributes:
        largest: Name of each parameter that this rank had a gradient for → the gradient's largest
            magnitude before it was summed, shape (), on its device.
    """

    def __init__(self, domains: Sequence[Domain], group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._buckets = [(domain, bucket) for domain in domains for bucket in domain.buckets]
        self._bucket_of = {
            name: place for place, (_, bucket) in enumerate(self._buckets) for name in bucket
        }
        self._counts: Counts | None = None
        self._writes: dict[str, int] = {}
        self._missing: list[int] = []
        self._sent: dict[int, tuple[Tensor, dist.Work | None]] = {}
        self.largest: dict[str, Tensor] = {}
        # Kept from step to step on a CPU: fresh memory costs as much as the copy.
        self._flats: dict[int, Tensor] = {}
        self._next = 0
        for domain in domains:
            for name, parameter in domain.parameters.items():
                parameter.register_post_accumulate_grad_hook(
                    lambda _, name=name: self._accumulated(name)
                )

    def begin(self, counts: Counts) -> None:
        """Before anything of a step can fail."""
        self._counts = counts
        self._next = 0
        self.largest = {}
        self.expect({})

    def expect(self, writes: Mapping[str, int]) -> None:
        """Before the first backward of a step.
        ``writes``: how many of this rank's backwards may write each parameter's gradient."""
        self._writes = dict(writes)
        self._missing = [0] * len(self._buckets)
        for name, times in writes.items():
            if times:
                self._missing[self._bucket_of[name]] += 1

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, gradients that arrive are not the step's."""
        counts, self._counts = self._counts, None
        try:
            yield
        finally:
            self._counts = counts

    def accumulated(self, names: Sequence[str]) -> None:
        """What hooks tell of a backward, of gradients that something else added to."""
        for name in names:
            self._accumulated(name)

    def send_rest(self) -> None:
        """Send what is still owed, whatever happened before. Collective.
        Raises ``GovrayError``: what the agreement raises; then nothing was sent."""
        self._missing = [0] * len(self._buckets)
        self._send_ready()

    def sums(self) -> dict[str, Tensor]:
        """Wait for the sums over ranks, by parameter name. Collective.
        Each has its parameter's shape, dtype and device."""
        total: dict[str, Tensor] = {}
        for place, (flat, work) in self._sent.items():
            if work is not None:
                with lost_peers_reported():
                    work.wait()
            total |= unflattened(*self._buckets[place], flat)
        return total

    def end(self) -> None:
        """After a step, done or not: backwards from here on are the user's own."""
        self._sent = {}
        self._counts = None
        # Memory that a GPU's allocator gives again costs nothing; from the system it does.
        self._flats = {place: f for place, f in self._flats.items() if f.device.type == "cpu"}

    def _accumulated(self, name: str) -> None:
        if self._counts is None:
            return  # not in a step: a user's own backward, before or between
        place = self._bucket_of[name]
        if place in self._sent or not self._writes.get(name):
            raise Refused(
                f"{name} received a gradient that was not planned",
                where="backward",
                do="Leave backward to the step; with activation checkpointing, pass "
                "use_reentrant=False",
            )
        self._refuse_sparse(name, place)
        self._writes[name] -= 1
        if self._writes[name] == 0:
            self._missing[place] -= 1
            if self._missing[place] == 0:
                self._send_ready()

    def _refuse_sparse(self, name: str, place: int) -> None:
        parameter = self._buckets[place][0].parameters[name]
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            parameter.grad = None  # or this rank could not send what it owes
            raise Refused(
                f"{name} received a sparse gradient, which can't be summed in buckets",
                where="backward",
                do="Look embeddings up with sparse=False",
            )

    def _send_ready(self) -> None:
        """Send the buckets that are ready. Collective: in one order on all ranks."""
        assert self._counts is not None
        counts = self._counts()
        while self._next < len(self._buckets) and not self._missing[self._next]:
            place = self._next
            domain, bucket = self._buckets[place]
            self._next += 1
            if not any(map(counts.get, bucket)):
                continue
            flat = self._flats[place] = flat_gradient(domain, bucket, self._flats.get(place))
            self._let_go(domain, bucket)
            work = None
            if dist.is_initialized():
                with lost_peers_reported(), torch.no_grad():
                    work = dist.all_reduce(flat, group=self._group, async_op=True)
            self._sent[place] = flat, work

    def _let_go(self, domain: Domain, bucket: Sequence[str]) -> None:
        """Drop this rank's gradients, which the flat bucket holds."""
        held = {
            name: gradient
            for name in bucket
            if (gradient := domain.parameters[name].grad) is not None and gradient.numel()
        }
        if held:
            self.largest |= zip(held, largest_magnitudes([*held.values()]), strict=True)
        for name in held:
            if name in self._writes:  # else nobody planned it, and the step refuses it later
                domain.parameters[name].grad = None
