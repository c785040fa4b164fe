"""Profiles whose weights follow the step: what is read, what is refused, what they resolve to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed, Refused
from govray.governance.policy.corpus_routes import CorpusRoutes, Fallback, resolve_all
from govray.governance.policy.depth_policy import Phase, Policy, PolicyDecision, Profile, in_force
from govray.governance.policy.lint import diff, lint
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.policy.route import Route, RoutePhase, resolve
from govray.governance.record.gates import Gate, changed_routes
from tests.support.credential_class import cls
from tests.support.table import each_row

GROUPS = ("embedding", "block.0", "block.1", "head")
CLASS = cls(corpus="notes")
TEXT = """
schema: govray.dev/depth-policy/v1
name: phased
version: 1
valid: {from: 2026-11-01, until: 2028-11-01}
on_expiry: stop
profiles:
  upper_first:
    layers: ["blocks[0.5:]", head]
    phases:
      - {from_step: 100, layers: all}
      - {from_step: 300, layers: {all: 0.5, embedding: 0}}
  head_only: {layers: [head]}
  own: {layers: none, adapter: "{corpus}", rank: 2}
rules:
  - {name: open, match: {license_category: [permissive]}, profile: upper_first}
"""
UPPER = {"block.1": 1.0, "head": 1.0}
HALF = dict.fromkeys(GROUPS[1:], 0.5)
ROUTE = Route(UPPER, phases=(RoutePhase(100, dict.fromkeys(GROUPS, 1.0)), RoutePhase(300, HALF)))


def policy(old: str = "", new: str = "") -> Policy:
    assert old in TEXT
    return read_policy(TEXT.replace(old, new) if old else TEXT)


def routed(found: Policy) -> Route:
    return resolve(found.decide(CLASS), GROUPS)


def test_phases_are_read_and_resolved() -> None:
    assert routed(policy()) == ROUTE
    written = policy().to_json()["profiles"]
    assert [phase["fromStep"] for phase in written["upper_first"]["phases"]] == [100, 300]
    assert Policy.from_json(policy().to_json()) == policy()


PHASES = TEXT[TEXT.index("    phases:") : TEXT.index("  head_only")]


@each_row(
    ("old", "new", "message"),
    [
        ("from_step: 300", "from_step: 100", "a phase from step 100 after one from step 100"),
        ("from_step: 100", "from_step: 400", "a phase from step 300 after one from step 400"),
        ("from_step: 100", "from_step: 0", "greater than"),
        ("from_step: 100", "from_step: 1.5", "integer"),
        ("from_step: 100, ", "", r"missing field 'profiles.upper_first.phases\[0\].from_step'"),
        ("layers: all}", "layers: none}", "permits nothing from step 100 on"),
        ('layers: ["blocks[0.5:]", head]', "layers: none", "permits nothing from step 0 on"),
        (PHASES, "    phases: []\n", "at least 1 item"),
        ("layers: all}", "layers: all, adapter: x, rank: 2}", "adapter"),
    ],
)
def test_what_means_nothing_is_refused_by_name(old: str, new: str, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        policy(old, new)


GATED = """
memorization:
  every: 100
  probe_rows: 32
  odds: 4
  actions: {open: {action: gate, fallback: %s}}
"""


def gated(fallback: str) -> CorpusRoutes:
    found = read_policy(TEXT + GATED % fallback)
    return resolve_all({"notes": found.decide(CLASS)}, GROUPS)


def test_a_fallback_is_narrower_in_every_phase() -> None:
    with pytest.raises(Refused, match=r"group 'head' weight 1, .* own route 0\.5 from step 300 on"):
        gated("head_only")
    narrow = gated("own").fallbacks["notes"].route
    assert gated("own").every("notes") == (ROUTE, *ROUTE.later, narrow)
    assert gated("own").domains(GROUPS) == (frozenset((*GROUPS, "adapter:notes")),)


WEIGHTS = st.dictionaries(
    st.sampled_from(("all", "embedding", "block.*", "blocks[0.5:]", "head")),
    st.sampled_from((0.0, 0.25, 0.5, 1.0)),
    min_size=1,
    max_size=3,
).filter(lambda layers: any(layers.values()))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    steps = sorted(draw(st.sets(st.integers(1, 12), max_size=3)))
    phases = tuple(Phase(from_step=step, layers=draw(WEIGHTS)) for step in steps)
    return Profile(layers=draw(WEIGHTS), phases=phases or None)


def decision(found: dict[str, Profile]) -> PolicyDecision:
    return PolicyDecision(
        policy="drawn v1",
        credential_class=CLASS,
        rules=tuple(found),
        profiles=found,
        label="drawn",
        adapter="team",
        rank=2,
        quarantined_by=None,
    )


@given(profiles(), profiles(), st.integers(0, 14))
def test_the_meet_of_a_step_is_the_step_of_the_meet(a: Profile, b: Profile, step: int) -> None:
    met = resolve(decision({"a": a, "b": b}), GROUPS)
    at = resolve(decision({"a": a.at(step), "b": b.at(step)}), GROUPS)
    assert (met.later_at(step) or replace(met, phases=())) == at
    assert met == resolve(decision({"b": b, "a": a}), GROUPS)


@given(profiles(), profiles())
def test_within_holds_in_every_step(a: Profile, b: Profile) -> None:
    if a.within(b):
        one, other = (resolve(decision({"x": each}), GROUPS) for each in (a, b))
        for step in range(14):
            wide = other.later_at(step) or other
            for group, weight in (one.later_at(step) or one).weights.items():
                assert weight <= wide.weights.get(group, 0.0)
    assert a.within(a)


@given(profiles(), st.integers(0, 14), st.integers(0, 14))
def test_a_gate_goes_before_a_phase(found: Profile, step: int, since: int) -> None:
    route = resolve(decision({"x": found}), GROUPS)
    own = CorpusRoutes({"notes": route, "other": Route(UPPER)})
    assert changed_routes([], {}, 0, step, own.phased) == (
        {"notes": later} if (later := route.later_at(step)) else {}
    )
    fallback = Fallback("own", Route({}, "notes", 2))
    gate = Gate(
        step=since,
        corpus="notes",
        reason="memorization",
        fallback="own",
        evidence="sha256:" + "1" * 64,
    )
    gone = changed_routes([gate], {"notes": fallback}, 0, step, own.phased)
    assert gone.get("notes") == (fallback.route if step >= since else route.later_at(step))


def test_a_phase_widens_what_it_opens() -> None:
    before, after = policy(PHASES, ""), policy()
    [change] = diff(before, after, [CLASS], GROUPS)
    assert (change.gains, change.losses) == (("embedding", "block.0"), ("block.1", "head"))
    assert change.after.phased == (
        "from step 100 embedding 1, block.0 1; "
        "from step 300 embedding 0, block.0 0.5, block.1 0.5, head 0.5"
    )
    for groups in (GROUPS, None):
        found = lint(after, previous=before, groups=groups, classes=[CLASS])
        assert "widens" in {each.code for each in found}
        found = lint(after, previous=after, groups=groups, classes=[CLASS])
        assert "widens" not in {each.code for each in found}


def test_one_corpus_has_one_stream_whatever_its_phase() -> None:
    found = resolve_all({"notes": policy().decide(CLASS)}, GROUPS)
    assert next(iter(found.by_digest)) == ROUTE.digest != Route(UPPER).digest
    assert found.taken("notes", None) == ROUTE
    assert {*ROUTE.reached} == {*GROUPS} == {*found.groups("notes")}
    assert found.taken("notes", ROUTE.later[0].digest) == ROUTE.later[0]
    with pytest.raises(Refused, match="no phase and no fallback of it"):
        found.taken("notes", Route(UPPER).digest)


@given(st.sets(st.integers(1, 20)), st.integers(0, 25))
def test_the_last_phase_that_has_begun_is_in_force(begins: set[int], step: int) -> None:
    later = [(since, since) for since in sorted(begins)]
    assert in_force(step, 0, later) == max((s for s in begins if s <= step), default=0)
