"""Fallbacks are narrower than the route that they replace, and in one domain with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Refused
from govray.governance.policy.corpus_routes import CorpusRoutes, Fallback, resolve_all
from govray.governance.policy.credential import CredentialClass
from govray.governance.policy.depth_policy import PolicyDecision
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.policy.route import ADAPTER, Route, domains

GROUPS = ("embedding", "block.0", "block.1", "head")
TEXT = """\
schema: govray.dev/depth-policy/v1
name: licences
version: 1
valid: {from: 2026-11-01, until: 2027-11-01}
on_expiry: stop
profiles:
  own: OWN
  fallback: FALLBACK
rules:
  - {name: open, match: {corpus: "*"}, profile: own}
memorization:
  every: 100
  probe_rows: 32
  odds: 3
  actions: {open: {action: gate, fallback: fallback}}
"""


def resolved(own: str, fallback: str, *corpora: str) -> CorpusRoutes:
    names = corpora or ("acme",)
    return resolve_all({corpus: decided(own, fallback, corpus) for corpus in names}, GROUPS)


def decided(own: str, fallback: str, corpus: str) -> PolicyDecision:
    policy = read_policy(TEXT.replace("OWN", own).replace("FALLBACK", fallback))
    source = {"corpus": corpus, "license": "MIT", "license_category": "permissive"}
    source |= {"jurisdiction": "ZZ", "sensitivity": "public", "use": "commercial"}
    return policy.decide(CredentialClass.from_source(source))


WEIGHTS = st.dictionaries(st.sampled_from(GROUPS), st.sampled_from([0.25, 0.5, 1.0]), max_size=4)


def written(weights: dict[str, float], adapter: bool) -> str:
    layers = ", ".join(f"{group}: {weight}" for group, weight in weights.items())
    more = ', adapter: "{corpus}", rank: 2' if adapter else ""
    return f"{{layers: {{{layers}}}{more}}}" if layers else f"{{layers: none{more}}}"


@given(WEIGHTS.filter(bool), WEIGHTS, st.booleans(), st.booleans())
def test_a_fallback_is_narrower_in_every_group_or_refused(
    own: dict[str, float], fallback: dict[str, float], own_adapter: bool, adapter: bool
) -> None:
    narrower = all(weight <= own.get(group, 0.0) for group, weight in fallback.items())
    same = fallback == own and own_adapter == adapter
    one, other = written(own, own_adapter), written(fallback, adapter)
    if not narrower or same:
        with pytest.raises(Refused, match="corpus 'acme', fallback 'fallback' of rule open"):
            resolved(one, other)
        return
    routes = resolved(one, other)
    if not fallback and not adapter:
        assert routes.fallbacks == {}  # it is left out
        return
    route = routes.fallbacks["acme"].route
    assert route.weights == {group: fallback[group] for group in GROUPS if group in fallback}
    assert routes.groups("acme")[: len(own)] == tuple(group for group in GROUPS if group in own)
    assert routes.taken("acme", None) == routes["acme"]
    assert routes.taken("acme", route.digest) == route
    with pytest.raises(Refused, match="no fallback of it"):
        routes.taken("acme", "sha256:" + "1" * 64)


def test_the_error_names_group_rule_and_corpus() -> None:
    with pytest.raises(Refused, match=r"'block\.1' weight 1, and the class's own route 0\.5") as e:
        resolved("{layers: {all: 0.5}}", "{layers: {block.1: 1}}")
    assert "rule open of policy licences v1" in str(e.value)
    with pytest.raises(Refused, match=r"selector 'blocks\[4\]' means no layer group"):
        resolved("{layers: all}", '{layers: {"blocks[4]": 1}}')


def test_an_own_adapter_is_nobody_elses() -> None:
    own = '{layers: none, adapter: "{corpus}", rank: 2}'
    routes = resolved("{layers: all}", own, "acme", "beta")
    assert routes.adapters == {"acme": 2, "beta": 2}
    # A route's own shared adapter stays one of the fallback, if it is written so.
    kept = resolved(
        "{layers: all, adapter: team, rank: 4}", "{layers: none, adapter: team, rank: 4}"
    )
    assert kept.fallbacks["acme"].route == Route({}, "team", 4)
    with pytest.raises(Refused, match="gives adapter 'team' rank 2, and the class's own route"):
        resolved("{layers: all, adapter: team, rank: 4}", own, "acme", "team")
    named = decided("{layers: all, adapter: beta, rank: 2}", "{layers: none}", "acme")
    with pytest.raises(Refused, match="trains adapter 'beta', which corpus 'acme' trains too"):
        resolve_all({"acme": named, "beta": decided("{layers: all}", own, "beta")}, GROUPS)


ROUTES = st.builds(
    lambda weights, adapter: (
        Route(weights, adapter if adapter or weights else "x", 2)
        if adapter or not weights
        else Route(weights)
    ),
    WEIGHTS,
    st.sampled_from([None, "x", "y"]),
)


@given(st.lists(ROUTES, min_size=1, max_size=4), st.lists(ROUTES, max_size=4))
def test_a_route_and_its_fallback_are_one_domain(own: list[Route], other: list[Route]) -> None:
    routes = CorpusRoutes(
        {str(n): route for n, route in enumerate(own)},
        {str(n): Fallback("f", route) for n, route in enumerate(other[: len(own)])},
    )
    found = routes.domains(GROUPS)
    for corpus in routes:
        assert len([d for d in found if not d.isdisjoint(routes.groups(corpus))]) == 1
    # As if each corpus had one route that reaches all of it: adapters stand for themselves.
    names = (*GROUPS, "adapter:x", "adapter:y")
    merged = [Route(dict.fromkeys(routes.groups(corpus), 1.0)) for corpus in routes]
    assert set(found) == set(domains(merged, names))
    assert all(group.startswith(ADAPTER) or group in GROUPS for d in found for group in d)
    if not routes.fallbacks:
        assert found == domains(routes.values(), GROUPS)
