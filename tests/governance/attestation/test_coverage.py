"""Coverage counts what the ledger reads, and taint is the least family that its rule allows."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.governance.attestation import coverage
from govray.governance.attestation.model_attestation import admitted_corpora
from govray.governance.policy.corpus_routes import CorpusRoutes, Fallback
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.route import ADAPTER, Route
from govray.governance.record.batch_plan import BatchPlan, plan_streams
from govray.governance.record.ledger import MAX_SQUARED_NORM, GradientNorms, Leaf, MeasuredPass
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.row_counts import corpus_totals
from govray.governance.record.row_order import RowOrder
from tests.support.world import World, record, unchecked

GROUPS = ("embedding", "block.0", "head")


def run(world: World, *, epochs: int = 1) -> tuple[BatchPlan, Manifest, CorpusRoutes]:
    credentials = {
        c: unchecked(Credential, e, world.operator) for c, e in world.credentials.items()
    }
    policy = unchecked(Policy, world.policy, world.operator).document
    corpora, routes = admitted_corpora(
        policy, credentials, [*GROUPS[:2], "block.1", "final_norm", "head"], world.steps
    )
    manifest = world.prepare(world.records, credentials)
    plan = BatchPlan(
        seed=3,
        max_steps=world.steps,
        manifest=corpora[0].credential,
        context=world.context,
        order=RowOrder(block=1, window=1 << 20),
        streams=plan_streams(
            {c.corpus: (routes[c.corpus].digest, c.profile) for c in corpora},
            {c.corpus: manifest.train_rows(c.corpus) for c in corpora},
            rows_per_step=world.quotas,
            epochs=dict.fromkeys(world.quotas, epochs),
        ),
    )
    return plan, manifest, routes


@pytest.mark.parametrize("epochs", [1, 3])
def test_coverage_is_a_recount_of_the_rows(epochs: int) -> None:
    world = World(steps=9)
    plan, manifest, routes = run(world, epochs=epochs)
    leaves = record(plan, manifest, world.trust.digest)
    found = {
        (c.corpus, c.group): c
        for c in coverage.coverage(leaves, (), routes, plan, manifest, world.files.of(manifest))
    }
    # The oracle goes row by row through the plan, and token by token through the rows.
    for corpus, route in routes.items():
        read = [
            (step, row)
            for step in range(plan.max_steps)
            for rows in plan.rows(step).values()
            for _, name, row in rows
            if name == corpus
        ]
        tokens = sum(manifest.targets(corpus, row) for _, row in read)
        records = {
            s.record for _, row in read for s in world.files.of(manifest).row_records(corpus, row)
        }
        assert tokens > 0
        for group in ("embedding", "block.0", "block.1", "final_norm", "head", "adapter:acme"):
            if group not in route.groups:
                assert (corpus, group) not in found
                continue
            entry = found.pop((corpus, group))
            weight = route.weights.get(group, 1.0)
            assert entry.tokens == tokens
            assert entry.records == len(records)
            assert entry.steps == len({step for step, _ in read})
            assert Fraction(entry.weighted_tokens) == tokens * Fraction(str(weight))
    assert not found


def test_excluded_corpora_are_not_counted() -> None:
    world = World()
    plan, manifest, routes = run(world)
    without = plan.without("beta")
    leaves = record(without, manifest, world.trust.digest)
    corpora = {
        c.corpus
        for c in coverage.coverage(leaves, (), routes, without, manifest, world.files.of(manifest))
    }
    assert corpora == {"acme", "alpha", "gamma"}


def test_leaves_of_every_branch_count_but_a_step_is_one_step_of_its_branch() -> None:
    world = World(steps=3)
    plan, manifest, _ = run(world)
    first = record(plan, manifest, world.trust.digest)
    again = [Leaf(**dict(leaf) | {"branch": 1}) for leaf in first]
    one = corpus_totals(first, plan, manifest, world.files.of(manifest))["alpha"]
    both = corpus_totals([*first, *again], plan, manifest, world.files.of(manifest))["alpha"]
    assert (both.tokens, both.steps) == (2 * one.tokens, 2 * one.steps)
    assert (both.records, both.rows) == (one.records, one.rows)


@given(st.integers(0, 2**63 - 1), st.floats(0, 1, exclude_min=True))
def test_weighted_tokens_are_exact_and_have_one_spelling(tokens: int, weight: float) -> None:
    text = coverage.weighted(tokens, weight)
    assert Fraction(text) == tokens * Fraction(repr(weight))
    assert text == format(Decimal(text), "f")
    assert not (("." in text) and text.endswith(("0", ".")))


Samples = list[dict[str, dict[str, float]]]
squares = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(st.sampled_from(GROUPS), st.floats(0, MAX_SQUARED_NORM), min_size=1),
    min_size=1,
)


def sampled(samples: Samples) -> list[GradientNorms]:
    passes = (MeasuredPass(rank=0, stream="sha256:" + "0" * 64, corpora={"a": 1}),)
    return [
        GradientNorms(step=step, passes=passes, squared_norms=found)
        for step, found in enumerate(samples)
    ]


@given(st.lists(squares, max_size=5), st.randoms())
def test_a_share_is_the_exact_quotient_of_the_sums_in_any_order(
    samples: Samples, random: Random
) -> None:
    found = coverage.norm_shares(sampled(samples))
    for corpus, group in product("abc", GROUPS):
        own = [s[corpus][group] for s in samples if group in s.get(corpus, {})]
        every = [groups[group] for s in samples for groups in s.values() if group in groups]
        total = sum(map(Fraction, every), Fraction(0))
        if not own or not total:
            assert (corpus, group) not in found
            continue
        # One rounding of each sum and one of the quotient.
        part = float(sum(map(Fraction, own), Fraction(0)))
        assert found[corpus, group] == part / float(total)
        assert 0 <= found[corpus, group] <= 1
    shuffled = random.sample(samples, len(samples))
    assert coverage.norm_shares(sampled(shuffled)) == found


corpora_names = ("a", "b", "c")


@st.composite
def routings(draw: st.DrawFn) -> CorpusRoutes:
    """Routes of up to three corpora over three base groups and their adapters, and fallbacks."""
    routes, fallbacks = {}, {}
    for corpus in corpora_names[: draw(st.integers(0, 3))]:
        groups = draw(st.sets(st.sampled_from(GROUPS)))
        adapter = corpus if not groups or draw(st.booleans()) else None
        routes[corpus] = Route(dict.fromkeys(sorted(groups), 1.0), adapter, 2 if adapter else None)
        if groups and draw(st.booleans()):
            fewer = draw(st.sets(st.sampled_from(sorted(groups))))
            route = Route(dict.fromkeys(sorted(fewer), 0.5), f"{corpus}-own", 2)
            fallbacks[corpus] = Fallback("narrow", route)
    return CorpusRoutes(routes, fallbacks)


def is_closed(
    family: dict[str, frozenset[str]],
    routes: CorpusRoutes,
    initial: dict[str, set[str]],
) -> bool:
    """The rule of the design, word for word: does the family contain what it must?"""
    split = routes.domains(GROUPS)
    for group, taint in family.items():
        needed = set(initial.get(group, ()))
        for corpus, route in ((c, route) for c in routes for route in routes.every(c)):
            if group in route.groups:
                needed.add(corpus)
                for read in GROUPS:
                    needed |= family[read]
                if route.adapter:
                    needed |= family[ADAPTER + route.adapter]
        for domain in split:
            if group in domain:
                for member in domain:
                    needed |= family[member]
        if not needed <= taint:
            return False
    return True


@settings(max_examples=60)
@given(
    routings(),
    st.dictionaries(st.sampled_from(GROUPS), st.just({"pretrained"}), max_size=2),
)
def test_taint_is_the_least_closed_family(
    routes: CorpusRoutes, initial: dict[str, set[str]]
) -> None:
    found = coverage.taint(GROUPS, routes, routes.domains(GROUPS), initial)
    assert is_closed(found, routes, initial)
    # Least: per label independently (the rule never mixes labels), no closed family is smaller.
    groups = list(found)
    for label in {*routes, "pretrained"}:
        smaller = [
            members
            for size in range(len(groups) + 1)
            for members in combinations(groups, size)
            if is_closed(
                {g: found[g] - {label} | ({label} if g in members else set()) for g in groups},
                routes,
                initial,
            )
        ]
        least = min(smaller, key=len)
        assert {g for g in groups if label in found[g]} == set(least)
        assert all(set(least) <= set(members) for members in smaller)


def test_an_adapter_in_a_domain_with_the_trunk_taints_the_trunk() -> None:
    """The control of the one above: link the adapter to one layer, and it is everywhere."""
    routes = CorpusRoutes(
        {"a": Route(dict.fromkeys(GROUPS, 1.0)), "x": Route({"head": 1.0}, "x", 2)}
    )
    found = coverage.taint(GROUPS, routes, routes.domains(GROUPS))
    assert all("x" in found[g] for g in GROUPS)


def test_a_tombstone_taints_nothing_but_its_domain_stays() -> None:
    routes = CorpusRoutes(
        {"a": Route({"embedding": 1.0}), "b": Route({"embedding": 1.0, "head": 1.0}, "b", 2)}
    )
    frozen = routes.domains(GROUPS)
    found = coverage.taint(GROUPS, routes, frozen, excluded=("b",))
    # "b" is nowhere; "a" still reaches what b's route had linked to the embedding.
    assert found == {
        "embedding": {"a"},
        "block.0": frozenset(),
        "head": {"a"},
        "adapter:b": {"a"},
    }


@pytest.mark.parametrize(
    ("replayed", "removed"), list(product([set(), {"embedding"}, set(GROUPS)], [set(), {"x"}]))
)
def test_each_level_requires_the_one_below(replayed: set[str], removed: set[str]) -> None:
    routes = CorpusRoutes({"a": Route(dict.fromkeys(GROUPS, 1.0)), "x": Route({}, "x", 2)})
    groups = coverage.all_groups(GROUPS, routes.adapters)
    found = coverage.levels(groups, routes, {"x": replayed}, removed)
    expected = {("a", "adapter:x"): 1}
    for group in GROUPS:
        expected["x", group] = (3 if removed else 2) if group in replayed else 1
    assert found == expected


def test_what_the_start_had_seen_is_no_evidence_of_exclusion() -> None:
    """Neither a replay of this run nor a removal takes back what an earlier run did."""
    routes = CorpusRoutes({"a": Route(dict.fromkeys(GROUPS, 1.0)), "x": Route({}, "x", 2)})
    started = {"embedding": ("x", "unknown"), "head": ("unknown",)}
    found = coverage.levels(GROUPS, routes, {"x": set(GROUPS)}, {"x"}, started)
    assert found == {("x", "embedding"): 0, ("x", "block.0"): 3, ("x", "head"): 3}
