"""Routes in terms of one model's parameters: who may update what, what counts, and what is linked.

Parameters are names here. Nothing asks what computes their gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from govray.engine.steps.batch import MicroBatch
from govray.errors import Refused
from govray.governance.policy.route import Route, domains


@dataclass(frozen=True)
class Routed:
    """A route in terms of one model's parameters.

    Attributes:
        adapter: What the stream's forward reads beside the model, if anything.
        groups: Layer groups with a weight above 0.
        weights: Parameter name → weight, for the parameters that may learn.
    """

    adapter: str | None
    groups: frozenset[str]
    weights: Mapping[str, float]


def resolve_parameters(
    route: Route,
    groups: Mapping[str, Sequence[str]],
    learning: Collection[str],
) -> Routed:
    """Which parameters a route lets learn, and how much.

    Args:
        groups: Layer group → parameter names, adapters' groups included.
        learning: Names of the parameters that may learn at all: the others are frozen.

    Raises:
        Refused: The route names a layer group or an adapter that the model lacks,
            or permits nothing that can learn.
    """
    shares = dict(route.weights)
    if route.adapter is not None:
        shares[f"adapter:{route.adapter}"] = 1.0
    for group in shares:
        if group not in groups:
            raise Refused(
                f"the route permits layer group {group}, which the model lacks",
                where=f"stream {route.digest}",
                do="Resolve the policy against this model's layer groups",
            )
    weights = {
        name: share for group, share in shares.items() for name in groups[group] if name in learning
    }
    if not weights:
        raise Refused(
            "the route permits no parameter that can learn",
            where=f"stream {route.digest}",
            do="Quarantine the class, or unfreeze a parameter of its layer groups",
        )
    return Routed(route.adapter, frozenset(shares), weights)


def count_targets(
    groups: Iterable[str], streams: Mapping[str, Routed], micro_batches: Iterable[MicroBatch]
) -> dict[str, int]:
    """Layer group → the loss targets of these rows that count there: this rank's part of N_l.

    Args:
        groups: All of the model's, adapters' included.
        micro_batches: Of one rank and one step.
    """
    counts = dict.fromkeys(groups, 0)
    for micro_batch in micro_batches:
        for group in streams[micro_batch.route].groups:
            counts[group] += micro_batch.targets
    return counts


def require_each_once(parameters: Iterable[str], groups: Mapping[str, Sequence[str]]) -> None:
    """Refuse layer groups that do not hold each parameter exactly once."""
    listed = [name for names in groups.values() for name in names]
    if sorted(listed) != sorted(parameters):
        odd = sorted({*parameters} ^ {*listed}) or sorted(
            {name for name in listed if listed.count(name) > 1}
        )
        raise Refused(
            f"the layer groups do not hold each parameter exactly once: see {odd[0]}",
            where="groups",
            do="Take the groups from layer_groups(model, ...)",
        )


def require_planned(
    micro_batches: Iterable[MicroBatch], alternatives: Mapping[str, Collection[str]]
) -> None:
    """See that rows take their stream's route, or an alternative to it.
    ``alternatives``: stream id → digests of the other routes that its rows may take."""
    for each in micro_batches:
        if each.taken is not None and each.taken not in alternatives.get(each.stream, ()):
            raise Refused(
                f"rows of stream {each.stream} take route {each.taken}, which is no phase and "
                "no fallback of it",
                where="micro-batch",
                do="Name the alternatives when the step is built, so that domains are frozen",
            )


def named_domains(
    groups: Iterable[str],
    routes: Mapping[str, Route],
    alternatives: Mapping[str, Collection[str]],
) -> dict[str, frozenset[str]]:
    """Domain → its layer groups, in the order of the passes. Its name is that of its first group.

    Args:
        groups: The base model's, in canonical order.
        routes: Digest → route, alternatives included.
        alternatives: Stream id → digests of the other routes that its rows may take. They are in
            one domain with it from the start, for the stream decides who takes them.
    """
    order = {group: place for place, group in enumerate(groups)}
    links = [(routes[one], routes[other]) for one, rest in alternatives.items() for other in rest]
    return {
        min(members, key=lambda group: (order.get(group, len(order)), group)): members
        for members in domains(routes.values(), tuple(order), links)
    }
