"""The base model's gradients summed by torch's DistributedDataParallel.

DDP starts a bucket's all-reduce when backward has reached every parameter in it, so it hosts only
unchanging graphs. Every pass of the base model's domain therefore has an edge to every parameter,
permitted or not. Sliced Functions are such edges; another pass gets one beside the loss, by which
no gradient comes. A comm hook takes the place of DDP's own, which divides by the number of ranks:
it sums.

Passes before the last one of a step add up locally (``no_sync``). Collectives run in the last
backward. In the second step they also run before the first forward, where DDP agrees on the order
of gradients. Ranks meet before both. A rank that fails in the last backward owes the others its
buckets, and sends zeros, as DDP itself does for a rank without rows. A pass that some rank did not
end leaves its DDP waiting for it, so the step function is over. Ranks may do different numbers of
passes; one without any does a padding pass.

What it does not do:

* More than one domain of the base model: DDP's buckets would span them.
* Equal bits of a resumed run, from three ranks on. DDP orders its buckets anew after its first
  step, and gloo's sums depend on them.
* Static graphs, delayed all-reduce, buffers (the step refuses models that write them).

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from govray.engine.collective.aggregator import Hosted, Meet, base_domains, trainable
from govray.engine.collective.agreement import lost_peers_reported
from govray.engine.collective.allreduce import BucketLayout, Domain, largest_magnitudes
from govray.engine.collective.bucket_reducer import Counts
from govray.engine.gradients.pass_planner import Pass
from govray.errors import Refused, UsageError


class DDP(Hosted):
    """See ``Governed`` for the arguments. Collective: all ranks make one.
    Raises ``Refused``: routes part the base model into several domains."""

    host = "torch's DistributedDataParallel"

    def __init__(
        self,
        model: nn.Module,
        domains: Sequence[Domain],
        layout: BucketLayout,
        *,
        timeout: timedelta | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise UsageError(
                "DDP needs a process group",
                where="aggregator: ddp",
                do="Call torch.distributed.init_process_group, or use aggregator: governed",
            )
        held = trainable(model)
        bases = base_domains(domains, held)
        if len(bases) > 1:
            raise Refused(
                f"routes part the base model into {len(bases)} domains "
                f"({', '.join(domains[place].name for place in bases)}), "
                "and DDP's buckets would span them",
                where="aggregator: ddp",
                do="Use aggregator: governed, or let one class's profile link the layer groups",
            )
        super().__init__(model, domains, layout, held if bases else {}, timeout=timeout)
        self.hosted = frozenset(bases)
        self._passes: Sequence[Pass] = ()
        self._first: int | None = None
        self._last: int | None = None
        self._sent: int | None = None  # buckets, while the last backward owes them
        self._edge: Tensor | None = None  # of the pass that runs, if it needs one
        self._wrapper = None
        if bases:
            self._wrapper = DistributedDataParallel(model, broadcast_buffers=False)
            self._names = {parameter: name for name, parameter in held.items()}
            # DDP compares annotations, and would not know these, which are strings.
            self._wrapper.register_comm_hook(None, lambda _, bucket: self._sum(bucket))

    def passes_needed(self, passes: Mapping[int, int]) -> list[int]:
        needed = super().passes_needed(passes)
        for place in self.hosted:
            needed[place] = min(1, passes.get(place, 0))
        return needed

    def begin(self, counts: Counts, meet: Meet) -> None:
        super().begin(counts, meet)
        self._sent = None

    def expect(self, passes: Sequence[Pass]) -> None:
        super().expect(passes)
        self._passes = passes
        hosted = [place for place, each in enumerate(passes) if self._is_hosted(each)]
        self._first, self._last = (hosted[0], hosted[-1]) if hosted else (None, None)

    @contextmanager
    def during(self, place: int) -> Iterator[nn.Module]:
        if self._wrapper is None or not self._is_hosted(self._passes[place]):
            yield self._model
            return
        if place == self._first:
            self._meet()
            # Else in the forward, behind whatever the loss does before: a collective, once.
            self._wrapper.reducer._rebuild_buckets()
            self.underway = True
        # Now, while every parameter requires grad: a homogeneous pass freezes some of them.
        reached = [self._held[name] for name in self._passes[place].reaches]
        self._edge = _Edge.apply(*reached) if reached else None
        with nullcontext() if place == self._last else self._wrapper.no_sync():
            yield self._wrapper

    def backward(self, place: int, total: Tensor) -> None:
        if place == self._last:
            self._meet()
            self._sent = 0
        edge, self._edge = self._edge, None
        super().backward(place, total if edge is None else total + edge)

    def send_rest(self) -> None:
        super().send_rest()
        if self._wrapper is None or self._sent is None:
            return
        for bucket in self._wrapper.reducer._get_zeros_like_grad_buckets()[self._sent :]:
            with lost_peers_reported():
                dist.all_reduce(bucket.buffer())
        self._sent = None

    def _is_hosted(self, each: Pass) -> bool:
        return not self.held.isdisjoint((*each.weights, *each.reaches))

    def _sum(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """DDP's comm hook: the sum of a bucket over ranks, undivided. Collective."""
        names = (self._names[parameter] for parameter in bucket.parameters())
        self._largest |= zip(names, largest_magnitudes(bucket.gradients()), strict=True)
        assert self._sent is not None
        self._sent += 1  # in order: DDP holds back those that are ready early
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])


class _Edge(torch.autograd.Function):
    """Zero, with an edge to each of some parameters by which no gradient comes."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.edges = len(parameters)
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.edges
