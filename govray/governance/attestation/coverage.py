"""What the ledger can state about each (corpus, layer group): coverage, taint and levels.

Pure functions from leaves, routes, plan and manifest, so that whoever signs and whoever verifies
compute the same thing. Coverage counts recorded gradient contributions; it says nothing about
what a model has learned.

Coverage

Every row in a leaf's ranges contributes its loss targets to each group in its corpus's route. A
corpus that a gate left out of the step is in the ranges, but not among the leaf's corpora. It
contributes nothing. Leaves of every branch count: a step that was rolled back was still a recorded
use.

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

T0 is what a pretrained start brings. The forward of a corpus reads every base group, and its own
adapter if its route has one. Iterating from the empty family of a monotone operator on a finite
lattice reaches the least fixpoint (Kleene). Since every corpus reads the whole trunk, T is usually
uniform over it.

Levels

Each (corpus, layer group) that the corpus's route does not reach has a level. Each level requires
all below. Level 0 is declared. Level 1: direct exclusion is enforced and counted. Level 2: a replay
without the corpus gave the same bytes for the file that holds the group. Level 3: the corpus's
adapter was removed. If the weights that the run started from had seen the corpus, the level is 0.
This ledger counts only this run, and no replay of it undoes the start's history.

``verify/ledger_step.py`` checks that leaves follow the plan and the routes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Context, Decimal, Inexact
from typing import Annotated

from pydantic import Field

from govray.governance.formats.bounds import Share
from govray.governance.formats.document import Count, Document, Name
from govray.governance.policy.route import ADAPTER, Route
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import GradientNorms, Leaf
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import RecordCounts
from govray.governance.record.row_counts import corpus_totals

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
    """(Corpus, group) → gradient-norm share in [0, 1], where one was measured.

    The shares of a group add up to 1, rounding apart. A group in which every norm was zero has
    none.
    """
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
    routes: Mapping[str, Route],
    plan: BatchPlan,
    manifest: Manifest,
    records: RecordCounts,
) -> tuple[Coverage, ...]:
    """One entry per (corpus, group) that a recorded gradient updated, sorted by both.

    Args:
        steps: The ledger's leaves of steps.
        norms: The ledger's gradient norms.
        routes: Corpus → route, for at least every corpus of the plan.
        records: Says how many records rows hold; what it raises is raised.
    """
    shares = norm_shares(norms)
    return tuple(
        Coverage(
            corpus=corpus,
            group=group,
            records=total.records,
            tokens=total.tokens,
            weighted_tokens=weighted(total.tokens, weight),
            steps=total.steps,
            gradient_norm_share=shares.get((corpus, group)),
        )
        for corpus, total in corpus_totals(steps, plan, manifest, records).items()
        for group, weight in sorted(group_weights(routes[corpus]).items())
    )


def group_weights(route: Route) -> dict[str, float]:
    """Group → weight, the route's adapter (always weight 1) included."""
    weights = dict(route.weights)
    if route.adapter is not None:
        weights[ADAPTER + route.adapter] = 1.0
    return weights


def weighted(tokens: int, weight: float) -> str:
    """``tokens * weight``, exactly, as a decimal string without exponent or trailing zeros."""
    product = _EXACT.multiply(Decimal(tokens), Decimal(repr(weight)))
    text = format(product, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def direct(groups: Iterable[str], routes: Mapping[str, Route]) -> dict[str, frozenset[str]]:
    """Group → the corpora whose route reaches it."""
    return {
        group: frozenset(c for c, route in routes.items() if group in route.groups)
        for group in groups
    }


def taint(
    base_groups: Sequence[str],
    routes: Mapping[str, Route],
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
    groups = all_groups(base_groups, routes)
    routes = {corpus: route for corpus, route in routes.items() if corpus not in excluded}
    reached = direct(groups, routes)
    current = {g: reached[g] | frozenset((initial or {}).get(g, ())) for g in groups}
    sources: dict[str, set[str]] = {g: set() for g in groups}
    for route in set(routes.values()):
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


def all_groups(base_groups: Sequence[str], routes: Mapping[str, Route]) -> tuple[str, ...]:
    """The base groups in their order, then the adapter groups of ``routes``, sorted."""
    adapters = {ADAPTER + r.adapter for r in routes.values() if r.adapter is not None}
    return (*base_groups, *sorted(adapters))


def levels(
    groups: Sequence[str],
    routes: Mapping[str, Route],
    replayed: Mapping[str, Collection[str]],
    removed: Collection[str],
    initial: Mapping[str, Collection[str]] | None = None,
) -> dict[tuple[str, str], int]:
    """(corpus, group) → level, for the groups that the corpus's route does not reach.

    Args:
        groups: Base and adapter groups.
        routes: Corpus → route. An entry is level 1 because the ledger's counts follow from these
            routes. Call this only for a ledger of which that has been checked.
        replayed: Corpus → the groups whose bytes a replay without the corpus reproduced.
        removed: The corpora whose removal was executed.
        initial: Group → what a pretrained start brought (T0).
    """
    found: dict[tuple[str, str], int] = {}
    for corpus, route in sorted(routes.items()):
        for group in groups:
            if group in route.groups:
                continue
            level = 1
            if corpus in (initial or {}).get(group, ()):
                level = 0
            elif group in replayed.get(corpus, ()):
                level = 3 if corpus in removed else 2
            found[corpus, group] = level
    return found
