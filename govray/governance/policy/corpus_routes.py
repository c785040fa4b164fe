"""The routes of a run's corpora, and where phases and gates send their rows.

A route may have phases, which follow the step alone. In a later phase the corpus's rows are read as
before, and train by that phase's weights.

A policy may name a fallback profile for a corpus that the model memorizes. From the gate on the
corpus's rows are read as before, and train by the fallback's route. Both routes are resolved before
a run begins. So adapters of fallbacks exist from the start, and domains are frozen with them.

Invariants:
    * A fallback is narrower than the corpus's own route in every phase. No layer group gets more
      weight, and the only adapter that it may add is the corpus's own, ``{corpus}``.
    * That adapter is in no route or fallback of another corpus.
    * Route and fallback lie in one domain. The evidence for the gate is of the one domain, and the
      gate decides what the fallback's groups learn. The phases of a route lie in one domain too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from govray.errors import Refused
from govray.governance.policy.depth_policy import PolicyDecision
from govray.governance.policy.route import Route, domains, resolve


@dataclass(frozen=True)
class Fallback:
    """Where a gate sends a corpus's rows.
    ``profile``: the profile's name, or those of several rules, joined by ``&``."""

    profile: str
    route: Route


class CorpusRoutes(Mapping[str, Route]):
    """Corpus → its own route; and the fallbacks beside it.
    ``fallbacks``: corpus → fallback, of those for which a gate has one that permits something."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        fallbacks: Mapping[str, Fallback] = MappingProxyType({}),
    ) -> None:
        self._routes = dict(routes)
        self.fallbacks = dict(fallbacks)

    def __getitem__(self, corpus: str) -> Route:
        return self._routes[corpus]

    def __iter__(self) -> Iterator[str]:
        return iter(self._routes)

    def __len__(self) -> int:
        return len(self._routes)

    def every(self, corpus: str) -> tuple[Route, ...]:
        """The routes that a corpus's rows may take: its own, those of later phases, then its
        fallback's."""
        fallback = self.fallbacks.get(corpus)
        own = (self[corpus], *self[corpus].later)
        return own if fallback is None else (*own, fallback.route)

    @cached_property
    def phased(self) -> dict[str, Route]:
        """Corpus → route, of the corpora whose route has phases."""
        return {corpus: route for corpus, route in self._routes.items() if route.phases}

    @property
    def changing(self) -> frozenset[str]:
        """The corpora whose rows may take other routes than their own."""
        return frozenset(self.phased) | self.fallbacks.keys()

    def until(self, steps: int) -> CorpusRoutes:
        """The same in a run of so many steps, without phases that it doesn't reach."""
        return CorpusRoutes({c: route.until(steps) for c, route in self.items()}, self.fallbacks)

    def groups(self, corpus: str) -> tuple[str, ...]:
        """The layer groups that a corpus's rows may update by any route."""
        return tuple(dict.fromkeys(g for route in self.every(corpus) for g in route.groups))

    def taken(self, corpus: str, route: str | None) -> Route:
        """The route that a recorded step names.
        ``route``: its digest; None for the corpus's own."""
        if route is None:
            return self[corpus]
        for other in self.every(corpus)[1:]:
            if other.digest == route:
                return other
        raise Refused(
            f"rows of it take route {route}, which is no phase and no fallback of it", where=corpus
        )

    @property
    def by_digest(self) -> dict[str, Route]:
        """Digest → route, of every route that some row may take, in the order of the corpora."""
        return {route.digest: route for corpus in self for route in self.every(corpus)}

    @property
    def adapters(self) -> dict[str, int]:
        """Every adapter that some row may train → its rank, sorted by name."""
        routes = [route for corpus in self for route in self.every(corpus)]
        return dict(sorted((r.adapter, r.rank) for r in routes if r.adapter and r.rank))

    def domains(self, base_groups: Sequence[str]) -> tuple[frozenset[str], ...]:
        """The frozen domains, over base and adapter groups, as `route.domains` orders them.
        ``base_groups``: the model's layer groups in order, without adapters."""
        links = [(self[corpus], other) for corpus in self for other in self.every(corpus)[1:]]
        return domains(self.values(), base_groups, links)

    def of(self, corpora: Sequence[str]) -> CorpusRoutes:
        """Those of some corpora."""
        return CorpusRoutes(
            {corpus: self[corpus] for corpus in corpora},
            {c: self.fallbacks[c] for c in corpora if c in self.fallbacks},
        )


def resolve_all(decisions: Mapping[str, PolicyDecision], groups: Sequence[str]) -> CorpusRoutes:
    """The routes and fallbacks of every admitted corpus in a model.

    Args:
        decisions: Corpus → decision, not quarantined.
        groups: The model's layer groups in order, without adapters.

    Raises:
        Refused: As `route.resolve`. Or a fallback is not narrower than the route, or its adapter is
            not the corpus's own. Names the corpus, the rules, and the layer group.
    """
    routes = {corpus: resolve(decision, groups) for corpus, decision in decisions.items()}
    fallbacks = {
        corpus: Fallback(decision.fallback.label, narrower(decision, routes[corpus], groups))
        for corpus, decision in decisions.items()
        if decision.fallback is not None
    }
    found = CorpusRoutes(routes, fallbacks)
    for corpus, each in fallbacks.items():
        if each.route.adapter is None or each.route.adapter == routes[corpus].adapter:
            continue
        for other in found:
            if other != corpus and each.route.adapter in {r.adapter for r in found.every(other)}:
                raise Refused(
                    f"the fallback trains adapter {each.route.adapter!r}, which corpus {other!r} "
                    "trains too",
                    where=_where(decisions[corpus]),
                    do="Rename that corpus, or the adapter in its profile",
                )
    return found


def narrower(decision: PolicyDecision, route: Route, groups: Sequence[str]) -> Route:
    """The route of a decision's fallback.

    Args:
        groups: The model's layer groups in order, without adapters.

    Raises:
        Refused: It permits something that the corpus's own route does not, or all the same. Or a
            selector means no layer group.
    """
    assert decision.fallback is not None
    fallback = resolve(decision.fallback, groups)
    where = _where(decision)
    for step, phase in route.by_phase:
        since = f" from step {step} on" if step else ""
        for group, weight in fallback.weights.items():
            if weight > (own := phase.weights.get(group, 0.0)):
                raise Refused(
                    f"the fallback gives layer group {group!r} weight {weight:g}, and the class's "
                    f"own route {own:g}{since}",
                    where=where,
                    do="Name a fallback that is narrower, since a gate never permits more",
                )
    same = (fallback.adapter, fallback.rank) == (route.adapter, route.rank)
    if fallback.adapter is not None and not same:
        if not decision.fallback.own_adapter:
            raise Refused(
                f"the fallback trains adapter {fallback.adapter!r}, which others may train too and "
                "the class's own route does not",
                where=where,
                do='Write adapter: "{corpus}" in the fallback, which is the corpus\'s own',
            )
        if fallback.adapter == route.adapter:
            raise Refused(
                f"the fallback gives adapter {fallback.adapter!r} rank {fallback.rank}, and the "
                f"class's own route rank {route.rank}",
                where=where,
                do="Give both the same rank",
            )
    if same_step := [step for step, phase in route.by_phase if phase == fallback]:
        since = f" from step {same_step[0]} on" if route.phases else ""
        raise Refused(
            f"the fallback permits all that the class's own route does{since}, so a gate would "
            "change nothing",
            where=where,
            do="Name a fallback that is narrower",
        )
    return fallback


def _where(decision: PolicyDecision) -> str:
    assert decision.fallback is not None
    rules = decision.fallback.rules
    return (
        f"corpus {decision.credential_class.corpus!r}, fallback {decision.fallback.label!r} of "
        f"rule{'s' if len(rules) > 1 else ''} {', '.join(rules)} of policy {decision.policy}"
    )
