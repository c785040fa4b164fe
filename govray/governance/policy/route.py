"""Routes: what a decision means for one model, and the domains that routes link.

A route gives each layer group of a model the weight with which a class's gradient reaches it.
Classes with equal routes share a route stream. Its id is the digest of the route: no index, number
of streams or policy digest enters it.

Invariants:
    * ``resolve`` of a decision is the pointwise minimum of its profiles' weights.
    * A tied group (``embedding+head`` is one tensor) gets the smallest of its parts'
      weights: what is forbidden to one part is forbidden to the tensor.
    * A selector that means no layer group of the model is an error, not nothing.
    * A route is never empty, in no phase. A class that may train nothing has no route.
    * Phases have one spelling: each differs from the one before it. So profiles that mean the same
      resolve to one route, whatever phases they are written with.
    * Domains are disjoint, and every route lies in exactly one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from govray.errors import Refused
from govray.governance.formats import canonical_json
from govray.governance.policy.depth_policy import PolicyDecision, Profile, in_force
from govray.governance.policy.selector import parse_selector

ADAPTER = "adapter:"
"""Prefix of the layer group that an adapter's parameters form."""


@dataclass(frozen=True)
class RoutePhase:
    """The weights of a route from a step on."""

    from_step: int
    weights: Mapping[str, float]


@dataclass(frozen=True)
class Route:
    """A resolved profile: which layer groups a stream updates, and how strongly.

    Attributes:
        weights: Layer group → weight in (0, 1]; groups without gradient are absent.
        rank: Its rank, exactly if there is an adapter.
        phases: From which steps on other weights hold. Until the first of them ``weights`` do.
    """

    weights: Mapping[str, float]
    adapter: str | None = None
    rank: int | None = None
    phases: tuple[RoutePhase, ...] = ()

    def __post_init__(self) -> None:
        if not self.weights and self.adapter is None:
            raise Refused("a route reaches no layer group", do="Quarantine its records instead")
        for group, weight in self.weights.items():
            if not 0 < weight <= 1:
                raise Refused(f"weight {weight} of layer group {group!r} is not in (0, 1]")
        if (self.adapter is None) != (self.rank is None):
            raise Refused("a route has an adapter without rank, or a rank without adapter")
        before = RoutePhase(0, self.weights)
        for phase in self.phases:
            if phase.from_step <= before.from_step or phase.weights == before.weights:
                raise Refused(f"a route's phase from step {phase.from_step} changes nothing")
            replace(self, weights=phase.weights, phases=())
            before = phase

    def __hash__(self) -> int:
        return hash(self.digest)

    def to_json(self) -> dict[str, Any]:
        """``{"weights": {...}, "adapter": {"name", "rank"}, "phases": [{"fromStep", "weights"}]}``,
        the latter two absent where the route has none."""
        value: dict[str, Any] = {"weights": dict(self.weights)}
        if self.adapter is not None:
            value["adapter"] = {"name": self.adapter, "rank": self.rank}
        if self.phases:
            value["phases"] = [
                {"fromStep": each.from_step, "weights": dict(each.weights)} for each in self.phases
            ]
        return value

    @cached_property
    def digest(self) -> str:
        """The stream's id: SHA-256 of the canonical JSON."""
        return canonical_json.sha256(canonical_json.encode(self.to_json()))

    @property
    def groups(self) -> tuple[str, ...]:
        """The layer groups that the stream updates in its first phase, its adapter's last."""
        own = () if self.adapter is None else (f"{ADAPTER}{self.adapter}",)
        return (*self.weights, *own)

    @cached_property
    def by_phase(self) -> tuple[tuple[int, Route], ...]:
        """(first step, what holds from it on) of every phase: routes without phases."""
        phases = (RoutePhase(0, self.weights), *self.phases)
        return tuple(
            (each.from_step, replace(self, weights=each.weights, phases=())) for each in phases
        )

    @property
    def later(self) -> tuple[Route, ...]:
        """What holds in each phase after the first: routes without phases."""
        return tuple(route for _, route in self.by_phase[1:])

    @property
    def reached(self) -> tuple[str, ...]:
        """The layer groups that the stream updates in some phase."""
        return tuple(dict.fromkeys(g for _, phase in self.by_phase for g in phase.groups))

    def later_at(self, step: int) -> Route | None:
        """The one of `later` that holds in a step; None in the first phase."""
        return in_force(step, None, self.by_phase[1:])

    def until(self, steps: int) -> Route:
        """The route in a run of so many steps, without phases that it doesn't reach."""
        kept = tuple(each for each in self.phases if each.from_step < steps)
        return self if kept == self.phases else replace(self, phases=kept)


def resolve(decision: PolicyDecision, groups: Sequence[str]) -> Route:
    """Return the route of a decision in a model.

    Args:
        decision: Not quarantined.
        groups: The model's layer groups in order, without adapters.

    Raises:
        Refused: The decision is quarantined, or a selector means no group of the model. Or the
            profiles' meet is empty in some phase, for instance of upper half and lower half.
    """
    where = f"corpus {decision.credential_class.corpus!r}, policy {decision.policy}"
    if decision.quarantined:
        raise Refused(
            f"rule {decision.quarantined_by!r} quarantines the class, so it has no route",
            where=where,
            do="Leave its records out",
        )
    found: list[RoutePhase] = []
    for step in (0, *decision.changes):
        weights = _met(decision, groups, step)
        if not weights and decision.adapter is None:
            since = f" from step {step} on" if decision.changes else ""
            raise Refused(
                f"rules {', '.join(decision.rules)} together leave no layer group{since}",
                where=where,
                do="Send the class to an empty profile if its records are to be quarantined",
            )
        if not found or found[-1].weights != weights:
            found.append(RoutePhase(step, weights))
    return Route(found[0].weights, decision.adapter, decision.rank, tuple(found[1:]))


def _met(decision: PolicyDecision, groups: Sequence[str], step: int) -> dict[str, float]:
    """The smallest weight that any profile gives in a step, where it is not 0."""
    resolved = [
        profile_weights(
            profile.at(step),
            groups,
            where=f"profile {name!r} of policy {decision.policy}"
            + (f" from step {step} on" if step else ""),
        )
        for name, profile in decision.profiles.items()
    ]
    weights = {group: min(each[group] for each in resolved) for group in groups}
    return {group: weight for group, weight in weights.items() if weight > 0}


def profile_weights(profile: Profile, groups: Sequence[str], *, where: str) -> dict[str, float]:
    """Return the weight that a profile gives to each of ``groups``, 0 included, in order.

    Args:
        profile: The profile; of one with phases, the first.
        groups: The model's layer groups, without adapters.
    """
    parts = [part for group in groups for part in group.split("+")]
    chosen: dict[str, float] = {}
    for text, weight in profile.layers.items():
        selected = parse_selector(text).select(parts)
        if not selected:
            raise Refused(
                f"selector {text!r} means no layer group of this model",
                where=where,
                do=f"The model has {', '.join(groups)}",
            )
        for part in selected:
            chosen[part] = min(weight, chosen.get(part, 1.0))
    return {group: min(chosen.get(part, 0.0) for part in group.split("+")) for group in groups}


def domains(
    routes: Iterable[Route],
    groups: Sequence[str],
    links: Iterable[tuple[Route, Route]] = (),
) -> tuple[frozenset[str], ...]:
    """Return the connected components of layer groups that routes link.

    Two groups are in one domain if a chain of routes leads from one to the other. An adapter that
    no route links to a layer is a domain of its own. Groups that no route reaches have no domain.

    Args:
        routes: Of every admitted class.
        groups: The model's layer groups in order, without adapters.
        links: Routes, and others that their rows may take. A gate that leads to a fallback rests
            on evidence of the one and steers the other, so they are in one domain. So are the
            phases of a route: a domain is frozen when the run starts.

    Returns:
        Domains in the order of their first group in the model; adapter-only domains
        follow, by name.
    """
    known = set(groups)
    found: list[set[str]] = []
    for route in routes:
        if unknown := [group for group in route.weights if group not in known]:
            raise Refused(
                f"a route names layer group {unknown[0]!r}, which the model lacks",
                do=f"The model has {', '.join(groups)}",
            )
        found = _linking(found, set(route.groups))
    for route, other in links:
        found = _linking(found, {*route.groups, *other.groups})
    position = {group: index for index, group in enumerate(groups)}
    return tuple(
        frozenset(domain)
        for domain in sorted(
            found,
            key=lambda d: (min(position.get(group, len(groups)) for group in d), min(d)),
        )
    )


def _linking(found: Sequence[set[str]], linked: set[str]) -> list[set[str]]:
    touching = [domain for domain in found if domain & linked]
    return [*(domain for domain in found if not domain & linked), linked.union(*touching)]
