"""The base model sharded over ranks by torch's ``fully_shard`` (FSDP2).

Parameters, gradients and optimizer states are DTensors, of which a rank holds its shard. Forward
gathers the parameters of a unit. Backward gathers them again and scatters the sum of its gradients.
So all ranks do equal passes, in the same order, adapters' too, with a gradient through every layer.
A pass is sliced. Where it can't be, it has rows of one route, and each gradient is weighed when it
arrives. Gradients are summed, not averaged, in the backward of every pass, so no rank holds those
of the whole model between two. A parameter without a permitted row counts as zeros there, and so
does one that a forward did not use. All ranks scatter the same buffers, a function of the model
alone.

Norms are taken over all shards, so clipping is that of the unsharded model up to
rounding. Adapters stay whole, and are summed as ever.

Ranks meet before every forward, every backward, and every collective inside them, so a rank
that fails at any point stops all. The model stays half gathered then: the step function is over.

Call ``fully_shard`` before the optimizer is made. Other meshes (``startup/whole_mesh.py``), and
parameters that are left out of sharding, are refused. The user's own ``set_custom_all_gather`` and
``set_custom_reduce_scatter`` are replaced.

Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from govray.engine.collective.aggregator import Hosted, trainable
from govray.engine.collective.allreduce import BucketLayout, Domain, largest_magnitudes
from govray.engine.gradients.pass_planner import Pass
from govray.errors import UsageError


class FSDP2(Hosted):
    """See ``Governed`` for the arguments."""

    host = "torch's FSDP2"

    def __init__(
        self,
        model: nn.Module,
        domains: Sequence[Domain],
        layout: BucketLayout,
        *,
        timeout: timedelta | None = None,
    ) -> None:
        held = trainable(model)
        for name, parameter in held.items():
            if not isinstance(model, FSDPModule) or not isinstance(parameter, DTensor):
                raise UsageError(
                    f"parameter {name} is not sharded",
                    where="aggregator: fsdp2",
                    do="Call govray.train.shard(model), or torch's fully_shard on the blocks and "
                    "the model, before the optimizer is made",
                )
        super().__init__(model, domains, layout, held, timeout=timeout)
        assert isinstance(model, FSDPModule)
        self.hosted = frozenset(range(len(domains)))
        self.tries = False
        self.zeros = True
        self._watched: set[int] = set()
        self._passes: Sequence[Pass] = ()
        self._weights: Mapping[str, float] = {}  # of the pass that runs; all are 1 where none is
        for fqn, module in model.named_modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)
                module.set_custom_all_gather(_AllGather(self))
                module.set_custom_reduce_scatter(_ReduceScatter(self))
                if hasattr(module, "set_reduce_scatter_unused_params"):  # not in torch 2.9
                    module.set_reduce_scatter_unused_params(True)
                watch = self._watch(f"{fqn}." if fqn else "")
                model.get_submodule(fqn).register_forward_pre_hook(watch)

    def passes_needed(self, passes: Mapping[int, int]) -> list[int]:
        return [passes.get(place, 0) for place in range(len(self._domains))]

    def expect(self, passes: Sequence[Pass]) -> None:
        super().expect(passes)
        self._passes = passes

    @contextmanager
    def during(self, place: int) -> Iterator[nn.Module]:
        self._meet()
        self.underway = True
        each = self._passes[place]
        self._weights = {name: each.weights.get(name, 0.0) for name in each.reaches}
        try:
            yield self._model
        finally:
            self._weights = {}

    @contextmanager
    def aside(self, each: Pass) -> Iterator[nn.Module]:
        """As `during`, for a pass before the step's own, of which nothing is kept."""
        self._passes = [each]
        with self._reducer.aside(), self.during(0) as model:
            yield model
        self._largest = {}

    def backward(self, place: int, total: Tensor) -> None:
        self._meet()
        super().backward(place, total)

    def before_collective(self) -> None:
        """Inside forward and backward, and before norms; outside a step nothing is to meet."""
        self._meet()

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        sharded = [g for name, g in gradients.items() if name in self.held]
        whole = [g for name, g in gradients.items() if name not in self.held]
        norms = [get_total_norm(whole)] if whole else []
        if sharded:
            self.before_collective()
            total = get_total_norm(sharded)
            assert isinstance(total, DTensor)
            norms.append(total.full_tensor())
        return torch.linalg.vector_norm(torch.stack(norms))

    def local(self, gradient: Tensor) -> Tensor:
        return gradient.to_local() if isinstance(gradient, DTensor) else gradient

    def _watch(self, prefix: str) -> Any:
        """Hear of this rank's gradients, on the tensors that forward really uses."""

        def hook(unit: nn.Module, _: Any) -> None:
            for name, parameter in unit.named_parameters():
                # Those of units inside are still sharded.
                if isinstance(parameter, DTensor) or id(parameter) in self._watched:
                    continue
                if parameter.requires_grad:
                    self._watched.add(id(parameter))
                    parameter.register_hook(lambda g, name=prefix + name: self._arrived(name, g))

        return hook

    def _arrived(self, name: str, gradient: Tensor) -> Tensor:
        """Weigh a gradient, and note how large it is."""
        weight = self._weights[name] if self._weights else 1.0
        if weight != 1.0:
            gradient = gradient * weight if weight else torch.zeros_like(gradient)
        (size,) = largest_magnitudes([gradient])
        before = self._largest.get(name)
        self._largest[name] = size if before is None else torch.maximum(before, size)
        return gradient


class _Met:
    """One of torch's collectives, once all ranks are there."""

    def __init__(self, aggregator: FSDP2) -> None:
        self._aggregator = aggregator

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._aggregator.before_collective()
        return super().__call__(*args, **kwargs)  # type: ignore[misc]


class _AllGather(_Met, DefaultAllGather): ...


class _ReduceScatter(_Met, DefaultReduceScatter): ...
