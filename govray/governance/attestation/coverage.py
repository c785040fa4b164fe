"""What the ledger can state about each (corpus, layer group): coverage, taint and levels.

Pure functions from leaves, routes, plan and manifest, so that whoever signs and whoever verifies
compute the same thing. Coverage counts recorded gradient contributions; it says nothing about
what a model has learned.

Coverage

Every row in a leaf's ranges contributes its loss targets to each group in its corpus's route. A
corpus that a gate left out of the step is in the ranges, but not among the leaf's corpora. It
contributes nothing. Where a gate sent a corpus to its fallback, or its route is in a later phase,
the leaf names the route that was taken. The rows contribute to its groups only. Leaves of every
branch count: a step that was rolled back was still a recorded use.

Gradient-norm share

For corpus c and layer group l, over the pieces of all sampled steps (``ledger.GradientNorms``)::

    share(c, l)  =  Σ ‖g_c,l‖²  /  Σ_d Σ ‖g_d,l‖²

It says how the gradients that were seen of l divide among the corpora, in size. Sums are
correctly rounded (``math.fsum``), so that no order matters and all who compute a share from the
same leaves get the same double.

Taint (the transitive kind)

T is the least family of sets with::

    T(l)  ⊇  T0(l)  ∪  {c : l ∈ route(c)}
             ∪  T(m)   for every m read by the forward of a c with l ∈ route(c)
             ∪  T(m)   for every m in l's domain

Of a corpus with a fallback or phases, route(c) is what any of its routes reaches, whether or not
the gate fell. T0 is what a pretrained start brings. The forward of a corpus reads every base group,
and its own adapter if its route has one. Iterating from the empty family of a monotone operator on
a finite lattice reaches the least fixpoint (Kleene). Since every corpus reads the whole trunk, T is
usually uniform over it.

Levels

Each (corpus, layer group) that the corpus reaches by no route has a level. Each level requires
all below. Level 0 is declared. Level 1: direct exclusion is enforced and counted. Level 2: a replay
without the corpus gave the same bytes for the file that holds the group. Level 3: the corpus's
adapter was removed. If the weights that the run started from had seen the corpus, the level is 0.
This ledger counts only this run, and no replay of it undoes the start's history.

Phases

A group that some phases of a corpus's route reach has no level. The steps of the other phases are
stated instead: in none of them did the corpus's own gradient enter the group. It holds of this run
alone, and enforced and counted is all that it says.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Context, Decimal, Inexact
from typing import Annotated

from pydantic import Field

from govray.governance.formats.bounds import Share
from govray.governance.formats.document import Count, Document, Name
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.route import ADAPTER, Route
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import AnyLeaf, GradientNorms, Leaf
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import RecordCounts
from govray.governance.record.row_counts import CorpusTotal, corpus_totals

# Products of counts below 2**63 and shortest float decimals fit; a rounding would raise.
_EXACT = Context(prec=400, traps=[Inexact])


class Coverage(Document):
    """What a ledger states of one (corpus, layer group) that the corpus's gradient updated.

    ``weighted_tokens`` is tokens times the route's weight, an exact decimal without exponent. The
    weight is the shortest decimal that names the float, as in its JSON. ``gradient_norm_share`` is
    absent where no sampled step measured the corpus in the group.
    """

    corpus: Name
    group: str
    records: Count
    tokens: Count
    weighted_tokens: Annotated[str, Field(pattern=r"^(0|[1-9][0-9]*)(\.[0-9]*[1-9])?$")]
    steps: Count
    gradient_norm_share: Share | None = None


def norm_shares(norms: Iterable[GradientNorms]) -> dict[tuple[str, str], float]:
    """(Corpus, group) → gradient-norm share in [0, 1], where one was measured. The shares of a
    group add up to 1, rounding apart. A group in which every norm was zero has none."""
    squares: dict[tuple[str, str], list[float]] = {}
    totals: dict[str, list[float]] = {}
    for sample in norms:
        for corpus, groups in sample.squared_norms.items():
            for group, square in groups.items():
                squares.setdefault((corpus, group), []).append(square)
                totals.setdefault(group, []).append(square)
    sums = {group: math.fsum(values) for group, values in totals.items()}
    return {
        (corpus, group): math.fsum(values) / sums[group]
        for (corpus, group), values in squares.items()
        if sums[group] > 0
    }


def coverage(
    steps: Iterable[Leaf],
    norms: Iterable[GradientNorms],
    routes: CorpusRoutes,
    plan: BatchPlan,
    manifest: Manifest,
    records: RecordCounts,
) -> tuple[Coverage, ...]:
    """One entry per (corpus, group) that a recorded gradient updated, sorted by both.

    Args:
        routes: Corpus → route, for at least every corpus of the plan; and the fallbacks.
        records: Says how many records rows hold; what it raises is raised.

    Raises:
        Refused: A leaf names a route that is no phase and no fallback of the corpus.
    """
    shares = norm_shares(norms)
    steps = list(steps)
    rerouted = {c for leaf in steps for c, use in leaf.corpora.items() if use.route is not None}
    others = [_without(leaf, rerouted) for leaf in steps] if rerouted else steps
    by_group = {
        corpus: {
            group: (total, weighted(total.tokens, weight))
            for group, weight in group_weights(routes[corpus]).items()
        }
        for corpus, total in corpus_totals(others, plan, manifest, records).items()
    }
    for corpus in rerouted:
        by_group[corpus] = _totals_by_group(corpus, steps, routes, plan, manifest, records)
    found = []
    for corpus, totals in sorted(by_group.items()):
        found += [
            Coverage(
                corpus=corpus,
                group=group,
                records=each.records,
                tokens=each.tokens,
                weighted_tokens=tokens,
                steps=each.steps,
                gradient_norm_share=shares.get((corpus, group)),
            )
            for group, (each, tokens) in sorted(totals.items())
        ]
    return tuple(found)


def _without(leaf: Leaf, corpora: Collection[str]) -> Leaf:
    uses = {corpus: use for corpus, use in leaf.corpora.items() if corpus not in corpora}
    return leaf.model_copy(update={"corpora": uses})


def _totals_by_group(
    corpus: str,
    steps: Sequence[Leaf],
    routes: CorpusRoutes,
    plan: BatchPlan,
    manifest: Manifest,
    records: RecordCounts,
) -> dict[str, tuple[CorpusTotal, str]]:
    """Group → what a corpus that took several routes used there, and its weighted tokens."""
    stream = plan.stream_of(corpus)
    by_route: dict[Route, list[Leaf]] = {}
    for leaf in steps:
        if (use := leaf.corpora.get(corpus)) is None:
            continue
        of_it = {i: each for i, each in leaf.streams.items() if stream and i == stream.id}
        alone = leaf.model_copy(update={"corpora": {corpus: use}, "streams": of_it})
        by_route.setdefault(routes.taken(corpus, use.route), []).append(alone)
    weights = {route: group_weights(route) for route in by_route}
    totals: dict[frozenset[Route], CorpusTotal] = {}
    found = {}
    for group in sorted({group for each in weights.values() for group in each}):
        reaching = frozenset(route for route in by_route if group in weights[route])
        if reaching not in totals:
            leaves = [leaf for route in reaching for leaf in by_route[route]]
            counts = records.of_group(group)
            totals[reaching] = corpus_totals(leaves, plan, manifest, counts)[corpus]
        product = Decimal(0)
        for route in reaching:
            tokens = sum(leaf.corpora[corpus].targets for leaf in by_route[route])
            product = _EXACT.add(product, _product(tokens, weights[route][group]))
        found[group] = totals[reaching], _text(product)
    return found


def group_weights(route: Route) -> dict[str, float]:
    """Group → weight, the route's adapter (always weight 1) included."""
    weights = dict(route.weights)
    if route.adapter is not None:
        weights[ADAPTER + route.adapter] = 1.0
    return weights


def weighted(tokens: int, weight: float) -> str:
    """``tokens * weight``, exactly, as a decimal string without exponent or trailing zeros."""
    return _text(_product(tokens, weight))


def _product(tokens: int, weight: float) -> Decimal:
    return _EXACT.multiply(Decimal(tokens), Decimal(repr(weight)))


def _text(product: Decimal) -> str:
    text = format(product, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def direct(groups: Iterable[str], routes: CorpusRoutes) -> dict[str, frozenset[str]]:
    """Group → the corpora that a route, in any phase, or a fallback lets reach it."""
    reached = {corpus: frozenset(routes.groups(corpus)) for corpus in routes}
    return {group: frozenset(c for c in routes if group in reached[c]) for group in groups}


def phase_exclusions(
    routes: CorpusRoutes, steps: int
) -> dict[str, dict[str, tuple[tuple[int, int], ...]]]:
    """Corpus → group → half-open ranges of steps in which its route does not reach the group,
    though it does in others. Corpora and groups without such steps are absent.

    Args:
        routes: Corpus → route. It holds because the ledger's leaves name the routes that rows took.
            Call this only for a ledger of which that has been checked.
    """
    found: dict[str, dict[str, tuple[tuple[int, int], ...]]] = {}
    for corpus, route in sorted(routes.phased.items()):
        starts = [step for step, _ in route.by_phase]
        spans = list(zip(starts, [*starts[1:], steps], strict=True))
        for group in sorted(route.reached):
            closed = _joined(
                span
                for span, (_, phase) in zip(spans, route.by_phase, strict=True)
                if group not in phase.groups
            )
            if closed:
                found.setdefault(corpus, {})[group] = closed
    return found


def _joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same steps, spans that touch as one."""
    found: list[tuple[int, int]] = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return tuple(found)


def taint(
    base_groups: Sequence[str],
    routes: CorpusRoutes,
    domains: Iterable[Collection[str]],
    initial: Mapping[str, Collection[str]] | None = None,
    excluded: Collection[str] = (),
) -> dict[str, frozenset[str]]:
    """Group → everything that can have reached it, directly or through other groups.

    Args:
        base_groups: The model's layer groups, adapters excepted.
        routes: Corpus → route, of every admitted corpus.
        domains: The frozen domains, over base and adapter groups.
        initial: Group → what a pretrained start brought (T0).
        excluded: Corpora that are tombstones in the plan: never read, so they reach nothing.
    """
    groups = all_groups(base_groups, routes.adapters)
    routes = routes.of([corpus for corpus in routes if corpus not in excluded])
    reached = direct(groups, routes)
    current = {g: reached[g] | frozenset((initial or {}).get(g, ())) for g in groups}
    sources: dict[str, set[str]] = {g: set() for g in groups}
    for route in {route for corpus in routes for route in routes.every(corpus)}:
        forward = {*base_groups, *(g for g in route.groups if g.startswith(ADAPTER))}
        for group in route.groups:
            sources[group] |= forward
    for domain in domains:
        for group in domain:
            sources[group] |= set(domain)
    while True:
        following = {
            g: current[g].union(*(current[source] for source in sources[g])) for g in groups
        }
        if following == current:
            return current
        current = following


def all_groups(base_groups: Sequence[str], adapters: Iterable[str]) -> tuple[str, ...]:
    """The base groups in their order, then the groups of these adapters, sorted."""
    return (*base_groups, *sorted(ADAPTER + name for name in adapters))


def updated_adapters(
    leaves: Iterable[AnyLeaf], plan: BatchPlan, routes: Mapping[str, Route]
) -> frozenset[str]:
    """The adapters that these steps updated. A commit has those of all its steps, and no other.
    ``routes``: digest → route, of every route that some row may take."""
    found = set()
    for leaf in leaves:
        for corpus, use in leaf.corpora.items() if isinstance(leaf, Leaf) else ():
            stream = plan.stream_of(corpus)
            route = routes.get(use.route or (stream.id if stream else ""))
            if use.targets and route and route.adapter:
                found.add(route.adapter)
    return frozenset(found)


def covered_adapters(covered: Iterable[Coverage]) -> frozenset[str]:
    """The same of a whole ledger, from its coverage. A model has these, and no other."""
    return frozenset(
        each.group.removeprefix(ADAPTER)
        for each in covered
        if each.tokens and each.group.startswith(ADAPTER)
    )


def levels(
    groups: Sequence[str],
    routes: CorpusRoutes,
    replayed: Mapping[str, Collection[str]],
    removed: Collection[str],
    initial: Mapping[str, Collection[str]] | None = None,
) -> dict[tuple[str, str], int]:
    """(corpus, group) → level, for the groups that the corpus reaches by no route.

    Args:
        groups: Base and adapter groups.
        routes: Corpus → route. An entry is level 1 because the ledger's counts follow from these
            routes. Call this only for a ledger of which that has been checked.
        replayed: Corpus → the groups whose bytes a replay without the corpus reproduced.
        removed: The corpora whose removal was executed.
        initial: Group → what a pretrained start brought (T0).
    """
    found: dict[tuple[str, str], int] = {}
    for corpus in sorted(routes):
        reached = routes.groups(corpus)
        for group in groups:
            if group in reached:
                continue
            level = 1
            if corpus in (initial or {}).get(group, ()):
                level = 0
            elif group in replayed.get(corpus, ()):
                level = 3 if corpus in removed else 2
            found[corpus, group] = level
    return found
