"""A model as its routes share it out: which stream may update which parameter, and in what domain.

Layer groups that some route links are one domain. Each domain is normalised, clipped and summed
on its own. Rows of a stream may take another route: a gate sends them to its fallback, or a phase
of the stream's route begins. The decision lies in the stream's domain, so stream and alternatives
are in one domain, from the start.

Invariants: every parameter is in exactly one layer group, and the optimizer moves these only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from govray.engine.batch import MicroBatch
from govray.engine.collective.allreduce import BucketLayout, Domain, lay_out
from govray.engine.model.adapters import Adapters
from govray.engine.steps.routed import (
    Routed,
    count_targets,
    named_domains,
    require_each_once,
    resolve_parameters,
)
from govray.errors import Refused, UsageError
from govray.governance.policy.route import Route


@dataclass(frozen=True)
class RoutedModel:
    """A model with its adapters, and what each stream may update.

    Attributes:
        parameters: All of both, by name.
        groups: Layer group → names of parameters, adapters' groups included.
        group_of: Name of a parameter → its layer group.
        streams: Stream id → route in terms of parameters, in one order on all ranks. The
            alternatives are there too, by digest.
        alternatives: Stream id → digests of the other routes that its rows may take.
        domains: In the order of their passes.
    """

    model: nn.Module
    adapters: Adapters
    parameters: Mapping[str, nn.Parameter]
    groups: Mapping[str, Sequence[str]]
    group_of: Mapping[str, str]
    streams: Mapping[str, Routed]
    alternatives: Mapping[str, Collection[str]]
    domains: tuple[Domain, ...]

    @cached_property
    def trained(self) -> frozenset[str]:
        """Names of the parameters that some stream may update."""
        return frozenset(name for domain in self.domains for name in domain.parameters)

    @cached_property
    def keeps_apart(self) -> bool:
        """Whether some stream may not update everything that is trained."""
        return any(stream.weights.keys() != self.trained for stream in self.streams.values())

    @cached_property
    def adapter_ids(self) -> frozenset[int]:
        """``id`` of every adapter's parameter. Not the parameters: hashing those would touch
        them."""
        return frozenset(id(p) for _, p in self.adapters.named_parameters())

    @property
    def setup(self) -> dict[str, Any]:
        """What must be equal on all ranks, in JSON."""
        return {
            "parameters": {n: [list(p.shape), str(p.dtype)] for n, p in self.parameters.items()},
            "groups": {group: list(names) for group, names in self.groups.items()},
            "streams": {name: dict(routed.weights) for name, routed in self.streams.items()},
            "alternatives": {
                name: sorted(each) for name, each in sorted(self.alternatives.items())
            },
            "buckets": {domain.name: domain.buckets for domain in self.domains},
        }

    def targets(self, micro_batches: Sequence[MicroBatch]) -> dict[str, int]:
        """Layer group → the loss targets of these rows that count there."""
        return count_targets(self.groups, self.streams, micro_batches)


def route_model(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    groups: Mapping[str, Sequence[str]],
    routes: Mapping[str, Route],
    alternatives: Mapping[str, Collection[str]],
    adapters: Adapters,
    layout: BucketLayout,
) -> RoutedModel:
    """Resolve every route against a model's parameters.

    Args:
        optimizer: Over exactly the parameters that may learn, adapters' included.
        groups: Layer group → FQNs, from ``layer_groups``.
        routes: Stream id → route, of every class that was admitted, alternatives included.
        alternatives: Stream id → digests of the other routes that its rows may take: those of
            later phases, and of a gate's fallback.

    Raises:
        Refused: A route does not fit the model, or a parameter escapes governance.
    """
    parameters = dict(model.named_parameters()) | dict(adapters.named_parameters())
    all_groups = {**groups, **adapters.groups}
    _require_governed(parameters, all_groups, optimizer)
    group_of = {name: group for group, names in all_groups.items() for name in names}
    learning = {name for name, parameter in parameters.items() if parameter.requires_grad}
    streams = {
        stream: resolve_parameters(route, all_groups, learning)
        for stream, route in sorted(routes.items())
    }
    return RoutedModel(
        model=model,
        adapters=adapters,
        parameters=parameters,
        groups=all_groups,
        group_of=group_of,
        streams=streams,
        alternatives=alternatives,
        domains=_domains(groups, routes, alternatives, parameters, group_of, streams, layout),
    )


def _domains(
    groups: Mapping[str, Sequence[str]],
    routes: Mapping[str, Route],
    alternatives: Mapping[str, Collection[str]],
    parameters: Mapping[str, nn.Parameter],
    group_of: Mapping[str, str],
    streams: Mapping[str, Routed],
    layout: BucketLayout,
) -> tuple[Domain, ...]:
    readers: dict[str, set[str]] = {name: set() for name in parameters}
    for stream, routed in streams.items():
        for name in routed.weights:
            readers[name].add(stream)
    found = named_domains(groups, routes, alternatives)
    place_of = {group: n for n, members in enumerate(found.values()) for group in members}
    own: list[dict[str, nn.Parameter]] = [{} for _ in found]
    for name, parameter in parameters.items():
        place = place_of.get(group_of[name])
        if place is not None and parameter.requires_grad:
            own[place][name] = parameter
    return tuple(
        lay_out(
            name,
            members,
            learning,
            layout,
            {name: frozenset(streams_of) for name, streams_of in readers.items()},
        )
        for (name, members), learning in zip(found.items(), own, strict=True)
    )


def _require_governed(
    parameters: Mapping[str, nn.Parameter],
    groups: Mapping[str, Sequence[str]],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Every parameter is in one group, and the optimizer moves these parameters only."""
    require_each_once(parameters, groups)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in parameters.items():
        if parameter.requires_grad and id(parameter) not in held:
            raise UsageError(
                f"the optimizer does not hold parameter {name}, which requires grad",
                where="optimizer",
                do="Add it, or freeze it with requires_grad_(False)",
            )
    if len(held - {id(parameter) for parameter in parameters.values()}):
        raise Refused(
            "the optimizer holds a parameter that is neither the model's nor an adapter's",
            where="optimizer",
            do="No policy covers it: leave it out, or make it a parameter of the model",
        )
