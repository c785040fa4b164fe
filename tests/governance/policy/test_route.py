"""Routes and domains: the laws of the meet on drawn models and policies."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Refused
from govray.governance.formats import canonical_json
from govray.governance.policy.depth_policy import Policy, PolicyDecision
from govray.governance.policy.route import Route, domains, profile_weights, resolve
from govray.governance.policy.selector import parse_selector
from tests.support.credential_class import cls
from tests.support.table import each_row

GROUPS = ("embedding", "block.0", "block.1", "block.2", "block.3", "final_norm", "head")
CLS = cls()


def decide(*profiles: dict[str, Any], groups: dict[str, Any] | None = None) -> PolicyDecision:
    """The decision of a policy whose rules all match, one for each profile."""
    value = {
        "name": "p",
        "version": 1,
        "valid": {"from": "2026-11-01T00:00:00Z", "until": "2027-11-01T00:00:00Z"},
        "onExpiry": "stop",
        "profiles": {f"p{i}": profile for i, profile in enumerate(profiles)},
        "rules": [{"name": f"r{i}", "match": {}, "profile": f"p{i}"} for i in range(len(profiles))],
    }
    return Policy.from_json(value | ({"groups": groups} if groups else {})).decide(CLS)


@each_row(
    ("text", "blocks", "selected"),
    [
        ("blocks[0]", 4, [0]),
        ("blocks[3]", 4, [3]),
        ("blocks[-1]", 4, [3]),
        ("blocks[-4]", 4, [0]),
        ("blocks[1:3]", 4, [1, 2]),
        ("blocks[:2]", 4, [0, 1]),
        ("blocks[-2:]", 4, [2, 3]),
        ("blocks[:]", 4, [0, 1, 2, 3]),
        ("blocks[:-1]", 4, [0, 1, 2]),
        ("blocks[0:4]", 4, [0, 1, 2, 3]),
        # Fractions round inward.
        ("blocks[0.5:]", 4, [2, 3]),
        ("blocks[0.5:]", 5, [3, 4]),
        ("blocks[:0.5]", 5, [0, 1]),
        ("blocks[0.25:0.75]", 10, [3, 4, 5, 6]),
        ("blocks[0.7:]", 10, [7, 8, 9]),
        ("blocks[0.0:1.0]", 3, [0, 1, 2]),
        ("blocks[1:0.5]", 8, [1, 2, 3]),
        # Beyond the model there is nothing, not a shorter range.
        ("blocks[4]", 4, []),
        ("blocks[-5]", 4, []),
        ("blocks[0:5]", 4, []),
        ("blocks[-5:]", 4, []),
        ("blocks[4:]", 4, []),
        ("blocks[3:1]", 4, []),
        ("blocks[0.5:0.6]", 4, []),
        ("blocks[:]", 0, []),
    ],
)
def test_blocks(text: str, blocks: int, selected: list[int]) -> None:
    groups = ["embedding", *(f"block.{i}" for i in range(blocks)), "head"]
    assert parse_selector(text).select(groups) == {f"block.{i}" for i in selected}


@given(st.integers(1, 40), st.decimals(0, 1, places=3), st.decimals(0, 1, places=3))
def test_fractions_take_in_no_block_that_lies_partly_outside(
    blocks: int, start: Any, stop: Any
) -> None:
    groups = [f"block.{i}" for i in range(blocks)]
    for group in parse_selector(f"blocks[{start}:{stop}]").select(groups):
        index = int(group.removeprefix("block."))
        assert start * blocks <= index
        assert index + 1 <= stop * blocks


def test_control_rounding_outward_takes_in_a_block_that_lies_partly_outside() -> None:
    groups = [f"block.{i}" for i in range(5)]
    strict = parse_selector("blocks[0.5:]").select(groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("govray.governance.policy.selector.math.ceil", math.floor)
        assert parse_selector("blocks[0.5:]").select(groups) == strict | {"block.2"}


def test_golden_route() -> None:
    """A stream's id seeds the batch plan and stands in ledgers, so its bytes are fixed."""
    layers = {"blocks[0.5:]": 1, "final_norm": 1, "head": 0.5}
    route = resolve(decide({"layers": layers, "adapter": "{corpus}", "rank": 8}), GROUPS)
    assert route.weights == {"block.2": 1.0, "block.3": 1.0, "final_norm": 1.0, "head": 0.5}
    assert route.groups == ("block.2", "block.3", "final_norm", "head", "adapter:acme")
    assert canonical_json.encode(route.to_json()) == (
        b'{"adapter":{"name":"acme","rank":8},'
        b'"weights":{"block.2":1,"block.3":1,"final_norm":1,"head":0.5}}'
    )
    assert route.digest == "sha256:c67ece1749fc2f4cc8dae8e10dc84c930114340c71cf96f16d664dd8c72b676c"
    assert Route({"head": 1.0}).to_json() == {"weights": {"head": 1.0}}


def test_a_tied_group_takes_the_smallest_weight_of_its_parts() -> None:
    tied = ("embedding+head", "block.0", "block.1")
    assert resolve(decide({"layers": {"all": 1, "head": 0.25}}), tied).weights == {
        "embedding+head": 0.25,
        "block.0": 1.0,
        "block.1": 1.0,
    }
    only_head = decide({"layers": {"head": 1, "block.1": 1}})
    assert resolve(only_head, tied).weights == {"block.1": 1.0}


def test_overlapping_selectors_take_the_smallest_weight() -> None:
    decision = decide({"layers": {"all": 0.5, "block.*": 1, "blocks[0]": 0}})
    assert resolve(decision, ("head", "block.0", "block.1")).weights == {
        "head": 0.5,
        "block.1": 0.5,
    }


@each_row("selector", ["head", "block.7", "blocks[4]", "blocks[0:5]", "mine"])
def test_a_selector_that_the_model_lacks_is_refused_by_name(selector: str) -> None:
    with pytest.raises(Refused) as caught:
        resolve(decide({"layers": {"embedding": 1, selector: 1}}), GROUPS[:5])
    message = str(caught.value)
    assert "profile 'p0' of policy p v1" in message
    assert repr(selector) in message
    assert "embedding, block.0" in message


def test_no_route_without_anything_to_train() -> None:
    with pytest.raises(Refused, match="rule 'r1' quarantines"):
        resolve(decide({"layers": {"all": 1}}, {"layers": {}}), GROUPS)
    with pytest.raises(Refused, match="rules r0, r1 together leave no layer group"):
        resolve(decide({"layers": {"blocks[:2]": 1}}, {"layers": {"blocks[2:]": 1}}), GROUPS)
    with pytest.raises(Refused, match="no layer group"):
        Route({})
    with pytest.raises(Refused, match="not in"):
        Route({"head": 0.0})
    with pytest.raises(Refused, match="rank"):
        Route({"head": 1.0}, adapter="a")


SELECTORS = ["all", "head", "embedding", "block.*", "blocks[0.5:]", "blocks[:2]", "blocks[-1]"]
WEIGHTS = st.sampled_from([0, 0.25, 0.5, 1])
PROFILES = st.fixed_dictionaries(
    {"layers": st.dictionaries(st.sampled_from(SELECTORS), WEIGHTS, max_size=3)},
    optional={"adapter": st.just("{corpus}")},
).map(lambda profile: profile | ({"rank": 8} if "adapter" in profile else {}))
MODELS = st.sampled_from(
    [GROUPS, ("embedding+head", *GROUPS[1:6]), ("embedding", "block.0", "block.1", "head")]
)


def outcome(decision: PolicyDecision, groups: tuple[str, ...]) -> Route | None:
    """The route, or ``None`` where nothing may be trained."""
    try:
        return resolve(decision, groups)
    except Refused:
        return None


@given(PROFILES, PROFILES, PROFILES, MODELS)
def test_the_meet_is_commutative_associative_and_idempotent(
    a: dict[str, Any], b: dict[str, Any], c: dict[str, Any], groups: tuple[str, ...]
) -> None:
    abc = outcome(decide(a, b, c), groups)
    assert abc == outcome(decide(c, a, b), groups)
    assert abc == outcome(decide(b, a, c), groups)
    assert abc == outcome(decide(a, b, c, a, b), groups)
    assert decide(a, b, c).quarantined == decide(c, b, a).quarantined


@given(st.lists(PROFILES, min_size=1, max_size=4), MODELS)
def test_resolving_the_meet_is_the_pointwise_minimum(
    profiles: list[dict[str, Any]], groups: tuple[str, ...]
) -> None:
    decision = decide(*profiles)
    alone = [profile_weights(profile, groups, where="") for profile in decision.profiles.values()]
    minimum = {group: min(weights[group] for weights in alone) for group in groups}
    route = outcome(decision, groups)
    if decision.quarantined:
        assert route is None
        assert any(profile.is_empty for profile in decision.profiles.values())
    elif route is None:
        assert not any(minimum.values())
        assert not any("adapter" in profile for profile in profiles)
    else:
        assert {group: route.weights.get(group, 0.0) for group in groups} == minimum
        assert (route.adapter == "acme") == any("adapter" in profile for profile in profiles)


@given(st.lists(PROFILES, min_size=1, max_size=3), PROFILES, MODELS)
def test_a_further_rule_never_raises_a_weight(
    profiles: list[dict[str, Any]], further: dict[str, Any], groups: tuple[str, ...]
) -> None:
    before = outcome(decide(*profiles), groups)
    after = outcome(decide(*profiles, further), groups)
    if after is not None:
        permitted = before.weights if before is not None else {}
        assert all(weight <= permitted.get(group, 0.0) for group, weight in after.weights.items())
    if decide(*profiles).quarantined:
        assert after is None


def test_control_a_meet_that_takes_the_largest_weight_widens() -> None:
    half, all_ = {"layers": {"blocks[0.5:]": 1}}, {"layers": {"all": 1}}
    before = resolve(decide(half), GROUPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("govray.governance.policy.route.min", max, raising=False)
        after = resolve(decide(half, all_), GROUPS)
    assert not after.weights.items() <= before.weights.items()
    assert resolve(decide(half, all_), GROUPS) == before


def test_domains_are_linked_by_routes() -> None:
    routes = [
        Route({"head": 1.0, "block.3": 1.0}),
        Route({"block.3": 0.5, "final_norm": 1.0}),
        Route({"embedding": 1.0}),
        Route({}, "zeta", 8),
        Route({}, "beta", 8),
        Route({"block.0": 1.0}, "delta", 8),
    ]
    assert domains(routes, GROUPS) == (
        frozenset({"embedding"}),
        frozenset({"block.0", "adapter:delta"}),
        frozenset({"block.3", "final_norm", "head"}),
        frozenset({"adapter:beta"}),
        frozenset({"adapter:zeta"}),
    )
    assert domains([], GROUPS) == ()


ROUTES = st.lists(
    st.builds(
        lambda groups, adapter: Route(
            dict.fromkeys(groups, 1.0), adapter, None if adapter is None else 8
        ),
        st.sets(st.sampled_from(GROUPS), min_size=1, max_size=3),
        st.sampled_from([None, "a", "b"]),
    )
    | st.sampled_from(["a", "b", "c"]).map(lambda name: Route({}, name, 8)),
    max_size=6,
)


@given(ROUTES, st.randoms(use_true_random=False))
def test_domains_partition_what_routes_reach(routes: list[Route], random: Any) -> None:
    found = domains(routes, GROUPS)
    assert sum(map(len, found)) == len(frozenset().union(*found)) if found else not routes
    assert frozenset().union(*found) == {group for route in routes for group in route.groups}
    for route in routes:
        assert sum(not domain.isdisjoint(route.groups) for domain in found) == 1
    # Fewest links: each domain is connected, so taking its routes alone gives it again.
    for domain in found:
        own = [route for route in routes if not domain.isdisjoint(route.groups)]
        assert domains(own, GROUPS) == (domain,)
    random.shuffle(routes)
    assert domains(routes, GROUPS) == found
